"""The program `nestling`: its commands and its error handling."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from typer.main import get_command

from nestling.cli import signals
from nestling.cli.check import check_command
from nestling.cli.compare import compare_command
from nestling.cli.complaint import exit_code_and_message
from nestling.cli.cost import cost_command
from nestling.cli.data import data_app
from nestling.cli.demo import demo_command
from nestling.cli.doctor import doctor_command
from nestling.cli.export import export_command
from nestling.cli.fit import fit_command
from nestling.cli.help import help_command
from nestling.cli.help_pages import GroupedCommands, PlainCommand
from nestling.cli.list import list_command
from nestling.cli.log import log_to_stderr
from nestling.cli.new import new_command
from nestling.cli.probe import probe_command
from nestling.cli.report import report_command
from nestling.cli.reproduce import reproduce_command
from nestling.cli.run import resume_command, run_command
from nestling.cli.screen import err, examples
from nestling.cli.sweep import sweep_command
from nestling.cli.watch import watch_command
from nestling.heap import keep_freed_memory

app = typer.Typer(
    cls=GroupedCommands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: short, and the same in all versions of typer
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "nestling demo",
        "nestling run heterofl-digits",
        "nestling compare fedavg-digits heterofl-digits fedrolex-digits --seeds 3",
        "nestling list presets",
        "nestling cost --model cnn --levels a,b,c,d,e",
        "nestling check package.module:factory",
        "nestling help settings local",
    ),
)


def _add(name: str, command: Callable[..., None], *example_commands: str) -> None:
    app.command(name, cls=PlainCommand, epilog=examples(*example_commands))(command)


_add("demo", demo_command, "nestling demo", "nestling demo --seeds 3 --out runs/demo", "nestling demo rounds=24 --json")
_add(
    "run",
    run_command,
    "nestling run heterofl-digits",
    "nestling run fedrolex-digits rounds=50 seed=1 fleet.levels=a-c-e workers=2 --out runs/first",
    "nestling run experiment.toml local.lr=0.05",
)
_add("resume", resume_command, "nestling resume runs/first", "nestling resume runs/first rounds=50 workers=2")
_add(
    "compare",
    compare_command,
    "nestling compare fedavg-digits heterofl-digits fedrolex-digits --seeds 3 --out runs/compare",
    "nestling compare heterofl-digits fjord-digits rounds=40 --json",
    "nestling compare runs/first runs/second",
)
_add(
    "sweep",
    sweep_command,
    "nestling sweep heterofl-digits local.lr=0.01,0.03,0.1 method=heterofl,fedrolex --seeds 3",
    "nestling sweep heterofl-digits fleet.levels=a-e,a-c-e rounds=50 --jobs 2 --out runs/levels --dry-run",
    "nestling sweep fedavg-digits 'model.options.widths=[8, 16, 32],[16, 32, 64]' 'local.milestones=[10, 20]' --json",
    """nestling sweep heterofl-digits "parts='','fedprox:0.01,feddyn:0.1'\"""",
)
_add(
    "reproduce",
    reproduce_command,
    "nestling reproduce digits-demo --seeds 2",
    "nestling reproduce heterofl-table1 --rows a,a-e --dry-run",
    "nestling reproduce heterofl-table2 --scale paper --seeds 3 --out runs/table2 device=cuda",
    "nestling reproduce heterofl-table2 --scale paper --seeds 3 --results elsewhere/results.json",
)
_add("watch", watch_command, "nestling watch runs/first", "nestling watch runs/compare --port 8080 --no-open")
_add(
    "report",
    report_command,
    "nestling report runs/compare",
    "nestling report runs/first --out page.html",
    "nestling report runs/compare --figures pdf --latex",
)
_add(
    "list",
    list_command,
    "nestling list methods",
    "nestling list methods fedrolex",
    "nestling list presets fedrolex cifar10 laptop",
    "nestling list models --json",
)
_add(
    "help",
    help_command,
    "nestling help run",
    "nestling help settings",
    "nestling help settings local",
    "nestling help settings fleet.levels",
    "nestling help completion",
)
_add(
    "cost",
    cost_command,
    "nestling cost --model cnn",
    "nestling cost --model resnet18 --levels a,c,0.3 --batch 64 --set classes=100 --set norm=gn",
    "nestling cost --model package.module:factory --json",
)
_add(
    "fit",
    fit_command,
    "nestling fit resnet18 --budget '2 MB' --budget '5 MB, 50 MMACs'",
    "nestling fit vit-tiny --budget 'watch: 200 kB, 20 MB memory' --budget 'phone: 20 ms' --by width --out fleet.toml",
    "nestling fit runs/first --budget '100 kB' --plot sizes.svg",
)
_add(
    "export",
    export_command,
    "nestling export runs/first --level c --out small.safetensors",
    "nestling export runs/first --budget '200 kB' --out small.onnx",
    "nestling export runs/first --budget '2 MB' --budget '50 MMACs' --format torch --out small.pt2 --json",
)
_add(
    "probe",
    probe_command,
    "nestling probe",
    "nestling probe --model resnet18 --levels a,c,e --batch 16",
    "nestling probe --down '5 MB' --up '1 MB' --json > device.json",
)
_add(
    "check",
    check_command,
    "nestling check mynets:make",
    "nestling check vit-tiny --json",
    "nestling check resnet8 --plot sizes.svg",
)
_add("new", new_command, "nestling new myapp", "nestling new myapp --flower")
_add("doctor", doctor_command, "nestling doctor", "nestling doctor --json > machine.json")
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, as NESTLING_DEBUG=1 does.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also show informational messages.")] = False,
) -> None:
    """Federated learning on devices of every size.

    There is one global model, and each device trains the slice of it that fits the device. --debug and --verbose may
    also follow a command. 'nestling COMMAND --help' describes a command.
    """
    if version:
        from nestling import __version__  # noqa: PLC0415

        typer.echo(f"nestling {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    The code is 0 for success, 2 for bad input, 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, and 1 for any
    other error.
    """
    words = list(sys.argv[1:] if args is None else args)
    if args is None:  # this process runs nothing else
        keep_freed_memory()
        signals.install()
    debug = "--debug" in words or os.environ.get("NESTLING_DEBUG", "0") not in ("", "0")
    verbose = "--verbose" in words
    words = [word for word in words if word not in ("--debug", "--verbose")]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # write ? if the terminal cannot show a character, such as ×
    try:
        with log_to_stderr(verbose):
            code = get_command(app).main(words, prog_name="nestling", standalone_mode=False)
        sys.stdout.flush()  # raise an error of a full disk here, not at exit
    except (KeyboardInterrupt, typer.Abort):
        return signals.exit_code(otherwise=130)
    except BrokenPipeError:  # the program that read our output has ended, as in 'nestling list models | head'
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit must not fail
        return 1
    except Exception as problem:
        if debug:
            traceback.print_exc()
        return signals.exit_code(otherwise=_print_error(problem))
    return signals.exit_code(otherwise=code if isinstance(code, int) else 0)


def _print_error(problem: Exception) -> int:
    """Print an error as one sentence on stderr; return the exit code."""
    from rich.text import Text  # noqa: PLC0415

    code, message = exit_code_and_message(problem)
    with contextlib.suppress(OSError):  # the terminal may be closed
        err().print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    return code
