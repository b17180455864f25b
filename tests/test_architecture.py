"""What docs/architecture.md says of the package holds: files, names, and how far one reads to follow an update."""

import ast
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path

import nestling
from nestling.experiment import find
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.methods.messages import TrainJob
from nestling.server.aggregate import Merge
from nestling.server.state import ServerState

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", re.M)


def defined(path):
    """The names that a file defines at its top level."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_where_is_what_names_what_there_is():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = ROW.findall(text.partition("## Where is what")[2].partition("\n## ")[0])
    assert len(rows) >= 16
    for change, file, symbol in rows:
        assert symbol in defined(ROOT / file), change


def test_no_module_has_the_path_of_a_public_function():
    for name in nestling.__all__:
        assert importlib.util.find_spec(f"nestling.{name}") is None, name


def test_no_basename_occurs_twice():
    """But for a paper's method and its presets, and for commands, which are called like what they do."""
    package = ROOT / "nestling"
    paths = [path.relative_to(package) for path in package.rglob("*.py") if not path.stem.startswith("__")]
    counted = [path for path in paths if path.parts[0] != "cli" and "presets" not in path.parts]
    packages = [path.parent.name for path in package.rglob("__init__.py") if path.parent != package]
    counted = [path for path in counted if path.stem != path.parent.name]  # `Fleet` in fleet/fleet.py
    twice = {name: n for name, n in Counter([*(path.stem for path in counted), *packages]).items() if n > 1}
    assert not twice, twice


def test_tests_lie_where_their_modules_lie():
    """A test file named after a module is in that module's folder; others are named after a topic, and none twice."""
    package, tests = ROOT / "nestling", ROOT / "tests"
    folders = {}  # of every module and package
    for path in package.rglob("*.py"):
        module = path.parent if path.stem == "__init__" and path.parent != package else path
        folders.setdefault(module.stem, set()).add(module.parent.relative_to(package))
    files = [path.relative_to(tests) for path in tests.rglob("test_*.py")]
    names = Counter(path.stem.removeprefix("test_") for path in files)
    for path in files:
        name = path.stem.removeprefix("test_")
        assert not name.startswith("run_"), path
        if path.parts[0] != "bench":  # which is not in the package
            assert path.parent in folders.get(name, {path.parent}), f"{path}: the module is in {folders[name]}"
        if names[name] > 1:
            assert name in folders or (ROOT / "bench" / f"{name}.py").exists(), f"{path} is not the only test_{name}.py"


def test_one_round_is_one_page():
    assert len((ROOT / "nestling/server/round.py").read_text(encoding="utf-8").splitlines()) <= 100


def test_the_update_of_one_client_is_followed_through_few_files():
    """From its job to the merged model, with plain PyTorch and one worker; axes, cut and engines are not counted."""
    plain = ["accelerate=off", "fleet.per_round=1", "local.epochs=1"]
    simulation = simulate(Overrides(find("heterofl-digits").with_settings(plain)))
    setup, simulator = simulation.setup, Simulator(simulation)
    state, _ = simulator.run_round(ServerState.start(setup))
    (who,) = simulation.participants(2)
    context = state.context(setup)
    job = TrainJob(who, setup.method.client_plan(context, who), context.number, context.lr)
    merge = Merge(setup, state)
    package, files = Path(nestling.__file__).parent, set()

    def note(frame, event, _argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(package):
            files.add(path.relative_to(package))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        merge.restart(state)
        for update in simulator.clients.train([job], state):
            merge.add(update, setup.weight(who))
        merge.value()
    finally:
        sys.setprofile(before)
    walked = sorted(str(path) for path in files if path.parts[0] not in ("axes", "cut", "engines"))
    assert len(walked) <= 26, walked
    assert {"client/train.py", "methods/sgd.py", "server/aggregate.py", "tasks/class_loss.py"} <= set(walked)
