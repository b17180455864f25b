"""``nestling doctor``: the facts about a machine that a bug report needs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from nestling.amounts import BYTES, amount
from nestling.cli.screen import AsJson, out, print_json, working
from nestling.cli.unsafe_kernels import KERNELS, verdict

_REQUIRED = ("torch", "numpy", "safetensors", "msgspec", "rich", "typer", "tomli-w")
_OPTIONAL = {  # package → the extra that installs it
    "scikit-learn": "data",
    "pooch": "data",
    "tqdm": "data",
    "pillow": "data",
    "scipy": "data",
    "h5py": "text",
    "matplotlib": "figures",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
    "mlflow": "mlflow",
    "numba": "fast",
    "ray": "ray",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "executorch": "executorch",
}
_NAME_WIDTH = 18  # columns
_X86 = ("sse4_1", "avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
_ARM = ("asimd", "asimddp", "sve", "sve2", "bf16")


def doctor_command(
    kernels: Annotated[
        bool,
        typer.Option(
            "--kernels/--no-kernels", help="Try kernels that are wrong on some processors, which takes some seconds."
        ),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Show the facts about this machine that a bug report needs.

    These are the processor, speed layers, memory, disk space, versions of packages, and which kernels are safe here.
    """
    with working("looking at this machine"):
        from nestling import __version__, machine  # noqa: PLC0415

        facts: dict[str, Any] = {
            "nestling": {"version": __version__, "folder": str(Path(__file__).parents[1])},
            "system": _system(),
            "processor": _processor(),
            "speed layers": _speed_layers(),
            "memory": machine.memory(),
            "disk": _disk(),
            "packages": {name: _version(name) for name in _REQUIRED},
            "optional packages": {name: _version(name) for name in _OPTIONAL},
        }
    if kernels:
        facts["kernels"] = {}
        for kernel in KERNELS:
            with working(f"trying: {kernel.name}"):
                safe, sentence = verdict(kernel)
            facts["kernels"][kernel.name] = {"safe": safe, "verdict": sentence}
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _system() -> dict[str, str]:
    libc = " ".join(filter(None, platform.libc_ver()))
    return {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform()
        + (f", {libc}" if libc and libc.replace(" ", "") not in platform.platform() else ""),
    }


def _processor() -> dict[str, Any]:
    import torch  # noqa: PLC0415

    from nestling.machine import processor  # noqa: PLC0415

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return {
        **{name: value for name, value in processor().items() if name != "torch"},
        "instruction_sets": _instruction_sets(),
        "cores": f"{usable} of {os.cpu_count()}",
        "threads": torch.get_num_threads(),
        "gpus": gpus + (["mps"] if torch.backends.mps.is_available() else []),
    }


def _instruction_sets(path: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the instruction sets that matter for speed; none if the system does not list them."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "").split()
    return [name for name in (*_X86, *_ARM) if name in flags]


def _speed_layers() -> dict[str, str]:
    """Return which layers that make training fast or safe are in use here, and why."""
    import torch  # noqa: PLC0415

    from nestling.kernels.speed_layers import speed_layers  # noqa: PLC0415

    onednn = "on" if torch.backends.mkldnn.is_available() else "off: this PyTorch was built without it"
    layers = {layer.name: f"{'on' if layer.on else 'off'}: {layer.reason}" for layer in speed_layers()}
    return {"oneDNN": onednn, **layers}


def _disk() -> dict[str, dict[str, Any]]:
    """Return the free bytes of the folders for runs, downloads and temporary files, and of shared memory."""
    from nestling.data.cache import download_dir  # noqa: PLC0415

    folders = {"here": Path.cwd(), "downloads": download_dir(), "temporary": Path(tempfile.gettempdir())}
    folders |= {"shared memory": Path("/dev/shm")} if Path("/dev/shm").is_dir() else {}
    facts = {}
    for name, folder in folders.items():
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free, writable = shutil.disk_usage(existing).free, os.access(existing, os.W_OK)
        facts[name] = {"path": str(folder), "free": free, "writable": writable}
    return facts


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print(facts: Mapping[str, Any]) -> None:
    """Print sections of names and values."""
    from rich.table import Table  # noqa: PLC0415

    console = out()
    for title, section in facts.items():
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="cyan", no_wrap=True, min_width=_NAME_WIDTH)
        table.add_column(overflow="fold")
        for name, value in section.items():
            text, style = _format(title, name, value)
            table.add_row(f"  {name if title == 'kernels' else name.replace('_', ' ')}", text, style=style)
        console.print(title, style="bold")
        console.print(table)


def _format(title: str, name: str, value: Any) -> tuple[str, str]:
    """Return a formatted value and its style."""
    if title == "kernels":
        return value["verdict"], {True: "green", False: "yellow", None: "dim"}[value["safe"]]
    if title == "memory":
        return ("not known" if value is None else amount(value, BYTES)), ""
    if title == "disk":
        access = "" if value["writable"] else ", not writable"
        return f"{amount(value['free'], BYTES)} free{access} in {value['path']}", ""
    if title == "optional packages" and value is None:
        return f"not installed: pip install 'nestling[{_OPTIONAL[name]}]'", "dim"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items()), ""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none", ""
    return ("none" if value in ("", None) else str(value)), ""
