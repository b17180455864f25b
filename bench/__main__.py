"""``python -m bench [PART …]``, or ``make bench PARTS=…``: speed and memory as ratios, side by side in one run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import cells, chosen, facts, markdown, measure, report
from bench.rounds.against import against
from nestling.cli.complaint import exit_code_and_message
from nestling.cli.screen import err, out, print_json, print_table, working
from nestling.errors import ConfigError


def bench_command(
    parts: Annotated[list[str] | None, typer.Argument(help="The parts to measure; all of them by default.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print tables as Markdown.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, single repeats: means little.")] = False,
    revision: Annotated[
        str, typer.Option("--against", metavar="REV", help="Measure rounds against those of an earlier revision alone.")
    ] = "",
    read: Annotated[Path | None, typer.Option(help="Print a file that --json wrote, and measure nothing.")] = None,
) -> None:
    """Measure speed and memory of this machine as ratios, side by side in one run.

    Takes some minutes. Leave the machine alone meanwhile: ratios bear some noise, not any amount.
    """
    if revision and read is None:
        if parts and parts != ["rounds"]:
            raise ConfigError("--against is for the part rounds alone")
        results = _against(revision, quick)
    else:
        results = _measured(parts or [], quick) if read is None else _read(read)
    if as_json:
        print_json(results)
    elif as_markdown:
        out().print(markdown(results))
    else:
        _show(results)


def _measured(names: list[str], quick: bool) -> dict[str, Any]:
    parts = chosen(names)
    results = {}
    for name, part in parts.items():
        with working(f"measuring {name}"):
            results[name] = measure(part, quick)
    return report(results, quick)


def _against(revision: str, quick: bool) -> dict[str, Any]:
    with working(f"measuring rounds against {revision}"):
        return report({"rounds": measure(partial(against, revision), quick)}, quick)


def _read(path: Path) -> dict[str, Any]:
    try:
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        results["parts"].items()
    except OSError as problem:
        raise ConfigError(f"{str(path)!r} cannot be read: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{str(path)!r} is not what 'python -m bench --json' prints") from None
    return results


def _show(results: dict[str, Any]) -> None:
    for header, rows, note in cells(results):
        print_table(
            {name: "left" if place == 0 or name in ("kept", "note") else "right" for place, name in enumerate(header)},
            rows,
            caption=note,
        )
    out().print(facts(results), style="dim")


def main(args: list[str] | None = None) -> int:
    """Run the benchmark and return its exit code: 0, 2 for bad input, or 1."""
    app = typer.Typer(add_completion=False)
    app.command()(bench_command)
    try:
        typer.main.get_command(app).main(args, prog_name="python -m bench", standalone_mode=False)
    except Exception as problem:
        code, sentence = exit_code_and_message(problem)
        err().print(f"error: {sentence}", markup=False, soft_wrap=True)
        return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
