"""Settings nobody would give: every one is run, or refused in one sentence with exit code 2.

The strategies follow the types of `Experiment`, so that a new setting is tried without being named here. Values that
are legal but would run for hours are left out; those that no machine could carry must be refused.
"""

import contextlib
import io
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nestling.cli import main
from nestling.methods import names
from nestling.settings import Experiment

CASES, FEW = 500, 30

BASE = """
method = "heterofl"
rounds = 1
[model]
name = "cnn"
options = {widths = [2, 4]}
[data]
samples = 30
[fleet]
clients = 3
per_round = 2
levels = "a-c"
[local]
epochs = 1
batch = 8
[evaluate]
samples = 12
"""

HUGE = ("9223372036854775807", "-9223372036854775808", "18446744073709551616", "1" * 400, "0x" + "f" * 5000)
ODD = (
    *(
        "",
        " ",
        "nan",
        "-inf",
        "inf",
        "true",
        "none",
        "[]",
        "{}",
        "[[]]",
        '""',
        "'a'",
        "é∞",
        "\\",
        "=",
        "1=2",
        '"""',
        "#",
    ),
    *("\0", "\udc80", "a\nb", "1979-05-27", "1e999", "1e-320", "-0.0", "1_0", "{a=1}", "[1,", "x" * 300, "[" * 3000),
)
SMALL = ("0", "1", "2", "3", "-1", "0.5", "1.0", "1e-3", "1.5")
FLOATS = ("0.0", "0.1", "0.999999", "1e10", "1e300", "-1e-9", "5e-324", "1e30")
TEXTS = (
    "auto",
    "off",
    "a-b",
    "digits",
    "cpu",
    "cuda",
    "cuda:99999999999999999999",
    "mps",
    "cuda:-1",
    "a:b",
    "../x",
    "é",
)

# What a setting may also be, where its type alone would hardly ever give something that is accepted.
ALSO = {
    "method": (*names(), "fedav", "os:path"),
    "options": ("{step=2}", "{masked=true}", "{mu=1e30}", "{ratio=0.5, every=1}", "{variant='W'}"),
    "options.masked": ("true", "false"),
    "options.mu": ("0", "-1", "1e30"),
    "options.variant": ("W", "WD", "plain"),
    "model.name": ("mlp", "cnn1d", "lstm", "transformer-mlm", "vgg16", "math:sqrt", "torch.nn:Flatten", "nowhere:net"),
    "model.options": ("{}", "{widths=[1]}", "{widths=[2, 2], norm='gn'}"),
    "model.options.widths": ("[1]", "[4, 4]", "[3, 5]", "[0]", "[-1, 4]", "[1e3]", "[[4]]", "[2, 2, 2, 2, 2]", "gn"),
    "model.options.norm": ("bn", "gn", "ln", "in", "none", "ab"),
    "model.options.classes": ("1", "3", "10", "12", "0"),
    "model.options.channels": ("1", "3"),
    "data.name": ("digits", "mnist", "wikitext2"),
    "fleet.levels": ("a", "e", "a-e", "a1-e9", "a:0.1,e:0.9", "0.001", "1e-300", "a-a", "a-", "0.5", "2"),
    "fleet.devices": ("laptop", "sensor", "phone-low:6,laptop:1", "phone-high", "nothing:1", "laptop:0", "laptop:nan"),
    "local.steps": ("1", "3", "0.5", "1.0", "2.5", "0", "-0.1"),
    "local.milestones": ("[1]", "[1, 1]", "[0]", "[1.5]", "[2, -1]"),
    "server.optimizer": ("fedadam", "fedavgm", "fedyogi"),
    "upload.format": ("topk", "8-bit", "topk-1bit"),
}

# Legal, and too much for a test: training for hours, thousands of processes, a cluster, images of gigabytes.
ENDLESS = {
    "rounds": lambda value: value in (1, 2) or value < 1 or value > 10**6,
    "local.epochs": lambda value: value in (1, 2) or value < 1 or value > 10**6,
    "local.steps": lambda value: value <= 20 or value > 10**9,
    "fleet.clients": lambda value: value < 100 or value > 10**7,
    "workers": lambda value: value <= 1 or value > 10**9,
    "data.resize": lambda value: value < 20 or value > 4096,
}


def leaves(kind: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, Any]]:
    """All settings with their types."""
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from leaves(field.type, f"{path}{field.name}.")
        else:
            yield path + field.name, field.type


def plain(kind: Any) -> Any:
    return plain(get_args(kind)[0]) if get_origin(kind) is Annotated else kind


def values(path: str, kind: Any) -> st.SearchStrategy[str]:
    """Texts to set a setting to: right, nearly right and wrong."""
    kind = plain(kind)
    numbers = st.integers(-3, 40).map(str) | st.sampled_from([*SMALL, *HUGE, str(2**31), str(10**9 + 1)])
    fitting = [st.sampled_from([*SMALL, *TEXTS])]
    if get_origin(kind) is Literal:
        fitting = [st.sampled_from([str(name) for name in get_args(kind)])]
    elif kind is int:
        fitting = [numbers]
    elif kind is float:
        fitting = [numbers, st.sampled_from(FLOATS), st.floats(0, 1).map(repr)]
    elif kind is bool:
        fitting = [st.sampled_from(["true", "false"])]
    if path in ALSO:
        fitting = [st.sampled_from(ALSO[path])] * 3
    return st.one_of(*fitting, *fitting, st.sampled_from(ODD), st.text(max_size=8))


KINDS = dict(leaves(Experiment)) | dict.fromkeys(ALSO, Any)


def override(path: str) -> st.SearchStrategy[str]:
    return values(path, KINDS[path]).map(lambda text: f"{path}={text}")


OVERRIDES = st.lists(
    st.sampled_from(sorted(KINDS)).flatmap(override),
    min_size=1,
    max_size=3,
    unique_by=lambda text: text.partition("=")[0],
)


def endless(override: str) -> bool:
    path, _, text = override.partition("=")
    if override == "engine=ray":
        return True
    try:
        return path in ENDLESS and not ENDLESS[path](int(text.strip(), 0))
    except ValueError:
        return False


def run(args: list[str]) -> tuple[int, str]:
    """Run the program in this process; return its exit code and what it says on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    return code, err.getvalue()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "base.toml").write_text(BASE)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            for name in ("NESTLING_DATA", "NESTLING_DEBUG"):
                patch.delenv(name, raising=False)
            patch.setenv("NESTLING_CACHE", f"{folder}/cache")
            yield Path(folder)


def judge(code: int, err: str) -> None:
    """A run is done, refused, or its loss is no number any more: each time in one sentence."""
    complaints = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in err
    assert "unexpected" not in err
    assert len(complaints) == (code != 0), err
    if code:
        assert err.splitlines()[-1] == complaints[0], err
        assert err.endswith("\n")
    if code == 1:
        assert "no longer a number" in err or "not finite" in err or "is no number" in err, err
    else:
        assert code in (0, 2), err


def test_the_settings_that_others_are_tried_on_run(place):
    assert run(["run", "base.toml", "--quiet", "--out", "base"]) == (0, "")
    shutil.rmtree(place / "base")


def fuzz(cases):
    health = list(HealthCheck)
    return settings(max_examples=cases, derandomize=True, deadline=None, database=None, suppress_health_check=health)


def try_settings(place, chosen):
    if any(map(endless, chosen)):
        chosen = [*chosen, "rounds=0"]  # refused, but only after everything was read
    code, err = run(["run", "base.toml", *chosen, "--quiet", "--out", "fuzzed"])
    shutil.rmtree(place / "fuzzed", ignore_errors=True)
    judge(code, err)


@fuzz(FEW)
@given(OVERRIDES)
def test_some_settings_run_or_are_refused_in_one_sentence(place, chosen):
    try_settings(place, chosen)


@pytest.mark.slow
@fuzz(CASES)
@given(OVERRIDES)
def test_any_settings_run_or_are_refused_in_one_sentence(place, chosen):
    try_settings(place, chosen)
