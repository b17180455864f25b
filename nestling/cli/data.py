"""``nestling data``: download datasets, and show how they are partitioned among clients."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nestling.amounts import BYTES, amount
from nestling.cli.completion import complete
from nestling.cli.help_pages import GroupedCommands, PlainCommand
from nestling.cli.screen import AsJson, DataDir, examples, next_step, out, print_json, print_table, working
from nestling.errors import NestlingError

if TYPE_CHECKING:
    from rich.text import Text

    from nestling.data import Dataset, Partition

_MAX_ROWS = 10  # with more clients, only the smallest, the median and the largest have a row
_MAX_CLASSES = 50  # in the map
_MAX_CLIENTS = 100  # in the map, or fewer if the terminal is narrower
_COLOURS = ("#3b528b", "#2c728e", "#20908c", "#35b779", "#8fd744", "#fde725")
_SHADES = "░░▒▒▓█"

data_app = typer.Typer(
    cls=GroupedCommands,
    help="Download datasets, and show how clients share them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("nestling data get mnist", "nestling data show digits --clients 20"),
)

_NAME = typer.Argument(
    metavar="NAME", help="A name from 'nestling list datasets'.", autocompletion=complete("datasets")
)


@data_app.command(
    "get", cls=PlainCommand, epilog=examples("nestling data get mnist", "nestling data get cifar10 --json")
)
def get_command(
    name: Annotated[str, _NAME],
    as_json: AsJson = False,
) -> None:
    """Download a dataset into the cache.

    Files are compared with their published checksums. If there is none, the checksum of the download is recorded next
    to the file, and compared whenever the file is read. The cache is the folder NESTLING_CACHE, or the system's usual
    folder for caches.
    """
    with working(f"looking for {name}"):
        from nestling.data import fetch  # noqa: PLC0415
        from nestling.data.catalog import entry  # noqa: PLC0415

        has_files = bool(entry(name).layouts)
    files = fetch.get(name, progress=sys.stderr.isatty())
    rows = [
        {"file": str(file.path), "bytes": file.path.stat().st_size, "sha256": file.sha256, "verified": file.verified}
        for file in files
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        out().print(f"{name} {'are files of your own' if has_files else 'needs no files'}: there is nothing to fetch")
        return
    print_table(
        {"file": "left", "size": "right", "sha256": "left", "checksum": "left"},
        [
            [
                str(row["file"]),
                amount(int(str(row["bytes"])), BYTES),
                str(row["sha256"]),
                "as published" if row["verified"] else "none published: recorded",
            ]
            for row in rows
        ],
    )
    next_step(f"nestling data show {name}")


@data_app.command(
    "show",
    cls=PlainCommand,
    epilog=examples(
        "nestling data show digits",
        "nestling data show cifar10 --clients 100 --partition classes --classes-per-client 2 --picture shares.html",
        "nestling data show mnist --partition dirichlet --alpha 0.5 --json",
    ),
)
def show_command(
    name: Annotated[str, _NAME],
    *,
    clients: Annotated[
        int | None,
        typer.Option(metavar="N", help="The number of clients; by default 100, or all users."),
    ] = None,
    scheme: Annotated[
        str,
        typer.Option(
            "--partition",
            metavar="KIND",
            help="The kind of partition: iid, classes, dirichlet, user or heterofl-shards.",
        ),
    ] = "iid",
    classes_per_client: Annotated[
        int | None,
        typer.Option(metavar="N", help="The classes of each client; needed by classes and heterofl-shards."),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(metavar="ALPHA", help="The concentration, small if far from IID; needed by dirichlet."),
    ] = None,
    minimum: Annotated[
        int, typer.Option(metavar="N", help="The smallest number of samples that a client may have.")
    ] = 1,
    seed: Annotated[int, typer.Option(metavar="SEED", help="The seed of the partition, as that of an experiment.")] = 0,
    data_dir: DataDir = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write a page with figures of the partition.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a dataset is partitioned among clients.

    The tables tell how many samples each client has, and of which classes. Of a text, the first clients are shown.
    """
    if picture is not None and not (picture.suffix.lower() == ".html" and picture.resolve().parent.is_dir()):
        raise NestlingError(f"the picture {str(picture)!r} must be an .html file in a folder that exists")
    with working(f"reading {name}"):
        from nestling.data import TEXTS, counts, load, partition  # noqa: PLC0415
        from nestling.data.partition import check_options  # noqa: PLC0415

        check_options(scheme, classes_per_client, alpha)  # before reading the data, which may take long
        dataset = None if name in TEXTS else load(name, data_dir)
    if dataset is None:
        if picture is not None:
            raise NestlingError(f"there is no picture of {name}: it is text, and has no classes")
        _show_text(name, clients, data_dir, as_json, {"scheme": scheme, "minimum": minimum, "seed": seed})
        return
    if clients is None:
        clients = len(dataset.users.unique()) if scheme == "user" and dataset.users is not None else 100
    with working(f"partitioning {name} among {clients:,} clients"):
        shares = partition(
            dataset,
            clients,
            scheme,
            classes_per_client=classes_per_client,
            alpha=alpha,
            minimum=minimum,
            seed=seed,
        )
        class_counts = counts(dataset, shares)
    options = {"classes_per_client": classes_per_client, "alpha": alpha, "minimum": minimum, "seed": seed}
    options = {key: value for key, value in options.items() if value is not None}
    about = f"{clients:,} clients, {scheme}, " + ", ".join(f"{key} {value}" for key, value in options.items())
    if picture is not None:
        with working("drawing"):
            from nestling.report.partition_panel import draw  # noqa: PLC0415

            draw(class_counts, picture, f"{name}: who holds what", about)
    if as_json:
        print_json(_as_json(dataset, shares, {"scheme": scheme, **options}))
    else:
        _print(dataset, shares, class_counts.tolist(), f"{name}: {about}")
        if picture is not None:
            out().print(f"\nthe picture is {str(picture)!r}")


def _show_text(name: str, clients: int | None, data_dir: str | None, as_json: bool, options: dict[str, Any]) -> None:
    """Print how a text is partitioned; only the clients that are shown are read."""
    from nestling.data import load_text, share  # noqa: PLC0415

    with working(f"reading {name}"):
        text = load_text(name, data_dir)
    if clients is None:
        enough = len(text.users) if text.sizes is None else int((text.sizes >= max(1, options["minimum"])).sum())
        clients = enough if options["scheme"] == "user" else 100
    shares = share(text, clients, **options)
    rows = [
        {"client": client, "sequences": len(shares.sequences[client]), "words": len(shares.labels[client])}
        for client in range(min(clients, _MAX_ROWS))
    ]
    if as_json:
        facts = {"dataset": name, "task": text.task, "vocabulary": text.classes, "length": text.length}
        print_json({**facts, "partition": options, "first_clients": rows})
        return
    about = f"sequences of {text.length} of {text.classes:,} words, {text.task}"
    out().print(f"{name}: {clients:,} clients, {options['scheme']}, {about}")
    print_table(
        {"client": "right", "sequences": "right", "different words": "right"},
        [[f"{value:,}" for value in row.values()] for row in rows],
        caption=f"the first {len(rows)} of {clients:,} clients; the others were not read",
    )


def _as_json(dataset: Dataset, shares: Partition, options: dict[str, Any]) -> dict[str, Any]:
    """Return the partition as the object that --json prints."""
    return {
        "dataset": dataset.name,
        "shape": list(dataset.shape),
        "classes": dataset.classes,
        "train": len(dataset.targets),
        "test": len(dataset.test_targets),
        "partition": options,
        "clients": [
            {"client": client, "train": len(train), "test": len(test), "labels": labels.tolist()}
            for client, (train, test, labels) in enumerate(zip(shares.train, shares.test, shares.labels, strict=True))
        ],
    }


def _print(dataset: Dataset, shares: Partition, class_counts: list[list[int]], title: str) -> None:
    console = out()
    console.print(title, style="bold")
    shape = "×".join(map(str, dataset.shape))
    console.print(f"{len(dataset.targets):,} samples to train on, {len(dataset.test_targets):,} to test, of {shape}\n")
    order = sorted(range(len(shares)), key=lambda client: len(shares.train[client]))
    if len(order) <= _MAX_ROWS:
        rows = {str(client): client for client in range(len(order))}
    else:
        rows = {"smallest": order[0], "median": order[len(order) // 2], "largest": order[-1]}
    print_table(
        {"client": "left", "samples": "right", "test": "right", "classes": "right", "which": "left"},
        [
            [
                name if name == str(client) else f"{name} (client {client:,})",
                f"{len(shares.train[client]):,}",
                f"{len(shares.test[client]):,}",
                f"{len(shares.labels[client]):,}",
                textwrap.shorten(" ".join(map(str, shares.labels[client].tolist())), 60, placeholder=" …"),
            ]
            for name, client in rows.items()
        ],
    )
    console.print()
    for line in _map(dataset, class_counts):
        console.print(line)


def _map(dataset: Dataset, class_counts: list[list[int]]) -> list[Text]:
    """Return a map of classes (down) × clients (across), with the totals of each class at the right."""
    from rich.text import Text  # noqa: PLC0415

    console = out()
    label_width = len(str(dataset.classes - 1))
    width = min(_MAX_CLIENTS, console.width - label_width - 26 if console.is_terminal else _MAX_CLIENTS)
    shown = class_counts[:width]
    cell = 2 if 2 * len(shown) <= width else 1
    largest = max(max(row) for row in shown) or 1
    coloured = console.color_system in ("256", "truecolor")  # with fewer colours, shades are clearer
    lines = []
    for label in range(min(dataset.classes, _MAX_CLASSES)):
        line = Text.assemble((f"{label:>{label_width}} ", "cyan"))
        for row in shown:
            if row[label]:
                share = (row[label] / largest) ** 0.5  # a square root, so that small numbers differ visibly
                step = min(len(_COLOURS) - 1, int(len(_COLOURS) * share))
                line.append(("█" if coloured else _SHADES[step]) * cell, _COLOURS[step] if coloured else "")
            else:
                line.append("·".ljust(cell), "dim")
        samples, holders = sum(row[label] for row in class_counts), sum(row[label] > 0 for row in class_counts)
        line.append(f"  {samples:>8,}  in {holders:>9,}")
        lines.append(line)
    notes = [
        f"classes down, clients across, at most {largest:,} samples; at the right, all samples and clients of a class"
    ]
    if len(shown) < len(class_counts):
        notes.append(f"the map shows the first {len(shown):,} of {len(class_counts):,} clients")
    if dataset.classes > _MAX_CLASSES:
        notes.append(f"the map shows the first {_MAX_CLASSES} of {dataset.classes:,} classes")
    return [*lines, *(Text(note, "dim") for note in notes)]
