"""``python -m nestling`` is the same as ``nestling``."""

import sys

from nestling.cli import main

if __name__ == "__main__":
    sys.exit(main())
