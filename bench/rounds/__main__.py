"""The program of a system that takes part."""

from bench.rounds.player import main

if __name__ == "__main__":
    main()
