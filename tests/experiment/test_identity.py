"""A run goes on with what it began with: the same objects and settings, or one sentence says what differs."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

import nestling
from nestling import report
from nestling.cli import main
from nestling.data import Partition, load
from nestling.errors import RunError
from nestling.events import collect
from nestling.experiment import identity as identity_module
from nestling.experiment import resume, run
from nestling.experiment.changes import HARMLESS, changed_settings, check_settings
from nestling.methods import make
from nestling.settings import Evaluate, FleetSettings, Model, from_file
from tests.experiment.test_resume import Stop
from tests.quick import mostly_slow
from tests.run_cases import outcome, tiny


class Net(nn.Module):
    """A model of one's own."""

    def __init__(self, width=8, classes=10):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3)
        self.head = nn.Linear(width, classes)

    def forward(self, inputs):
        return self.head(self.conv(inputs).relu().mean((2, 3)))


def net(seed=0, **options):
    torch.manual_seed(seed)
    return Net(**options)


def data(name="mine"):
    digits = load("digits")
    return replace(digits, name=name, inputs=digits.inputs[:80], targets=digits.targets[:80])


def shares(seed=0):
    return nestling.partition(data(), 4, seed=seed)


def interrupted(folder, **own):
    with pytest.raises(KeyboardInterrupt):
        run(tiny(rounds=3), out=folder, callbacks=[Stop(rounds=1)], quiet=True, **own)


def test_objects_handed_in_are_needed_again(tmp_path, capsys):
    own = {"model": net(), "dataset": data(), "partition": shares(), "method": make("fedrolex")}
    run(tiny(rounds=3), out=tmp_path / "whole", quiet=True, **own)
    interrupted(tmp_path / "cut", **own)
    for path in ("whole", "cut"):  # whether it is over or not
        assert main(["resume", str(tmp_path / path)]) == 2
        err = capsys.readouterr().err
        assert "was started in Python with its own model (Net), dataset (mine), partition (4 clients)" in err
        assert f"nestling.resume({str(tmp_path / path)!r}, model=…, dataset=…, partition=…, method=…)" in err
        assert err.count("\n") == 1
    with pytest.raises(RunError, match=r"with its own dataset \(mine\) and partition .* must be handed in again"):
        resume(tmp_path / "cut", model=net(), method=make("fedrolex"))
    again = {"model": net(seed=7), "dataset": data(), "partition": shares(), "method": make("fedrolex")}
    resume(tmp_path / "cut", **again)  # trained weights are in the checkpoint: those of the model mean nothing
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


@pytest.mark.parametrize(
    ("kind", "began", "other", "parts"),
    [
        ("model", net, lambda: net(width=9), "tensors differ"),
        ("model", net, lambda: nn.Sequential(net()), "tensors, frozen parameters and layers differ"),
        ("model", net, lambda: net().requires_grad_(False), "frozen parameters differ"),
        ("dataset", data, lambda: data("yours"), "name differs"),
        ("dataset", data, lambda: replace(data(), targets=data().targets.flip(0)), "labels differ"),
        ("dataset", data, lambda: replace(data(), inputs=data().inputs.flip(0)), "samples differ"),
        ("dataset", data, lambda: replace(data(), augment="crop-flip"), "preparation differs"),
        ("partition", shares, lambda: shares(1), "training shares, test shares and labels differ"),
        ("method", lambda: make("fedrolex"), lambda: make("fedrolex", {"step": 2}), "plan differs"),
    ],
)
def test_other_objects_are_refused(tmp_path, kind, began, other, parts):
    interrupted(tmp_path / "run", **{kind: began()})
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=rf"the {kind} '.*' is not the one that .* was started with: its .*{parts}"):
        resume(tmp_path / "run", **{kind: other()})
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    resume(tmp_path / "run", **{kind: began()})


def test_objects_that_were_not_handed_in_are_refused(tmp_path):
    interrupted(tmp_path / "run")
    with pytest.raises(
        RunError, match=r"was started with the dataset that its config\.toml names: leave out dataset=…"
    ):
        resume(tmp_path / "run", dataset=data())


def test_a_run_that_starts_over_needs_the_same_weights(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tiny(rounds=3), out=tmp_path / "run", callbacks=[Stop(jobs=1)], model=net())
    with pytest.raises(RunError, match=r"no round of .* was saved, and the weights of the model handed in are not"):
        resume(tmp_path / "run", model=net(seed=1))
    run(tiny(rounds=3), out=tmp_path / "whole", model=net())
    resume(tmp_path / "run", model=net())
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_the_directory_says_what_was_used(tmp_path, capsys):
    deal = shares()
    own = {"model": net(), "dataset": data(), "partition": Partition(deal.train, deal.test, deal.labels)}
    result = run(tiny(rounds=1), out=tmp_path / "run", **own)
    named = {key: result.summary[key] for key in ("model", "dataset", "partition", "name", "command")}
    assert named == {
        "model": "Net",
        "dataset": "mine",
        "partition": "own",
        "name": "heterofl-mine",
        "command": "nestling.run('config.toml', model=…, dataset=…, partition=…)",
    }
    written = from_file(tmp_path / "run" / "config.toml")
    assert (written.model.name, written.model.options, written.data.name) == ("Net", {}, "mine")
    assert (tmp_path / "run" / "config.toml").read_text().startswith("# Started in Python with an own model, dataset")
    assert report.find([tmp_path / "run"])[0].model == "Net"
    assert main(["compare", str(tmp_path / "run"), "--no-report"]) == 0
    assert main(["run", str(tmp_path / "run" / "config.toml"), "--out", str(tmp_path / "again")]) == 2
    assert "mine" in capsys.readouterr().err


def edit(folder, old, new):
    text = (folder / "config.toml").read_text()
    assert old in text
    (folder / "config.toml").write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed = 0", "seed = 5", r"seed is 5 and was 0"),
        ("clients = 4", "clients = 5", r"fleet\.clients is 5 and was 4"),
        ("lr = 0.05", "lr = 0.01", r"local\.lr is 0\.01 and was 0\.05"),
        ("    4,\n    4,", "    4,\n    8,", r"model\.options\.widths is \[4, 8\] and was \[4, 4\]"),
        ("every = 2", "every = 3", r"evaluate\.every is 3 and was 2"),
    ],
)
def test_edited_settings_are_refused_by_name(tmp_path, capsys, old, new, words):
    with pytest.raises(KeyboardInterrupt):
        run(tiny(rounds=3), out=tmp_path / "run", callbacks=[Stop(rounds=1)], quiet=True)
    edit(tmp_path / "run", old, new)
    with pytest.raises(RunError, match=words):
        resume(tmp_path / "run")
    assert main(["resume", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "may change" in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_settings_that_cannot_change_numbers_may_change(tmp_path, capsys):
    run(tiny(rounds=3), out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tiny(rounds=3), out=tmp_path / "cut", callbacks=[Stop(rounds=1)])
    edit(tmp_path / "cut", "checkpoint_every = 10", "checkpoint_every = 1")
    with pytest.raises(RunError, match="seed is 4 and was 0"):
        resume(tmp_path / "cut", settings=["seed=4"])
    assert main(["resume", str(tmp_path / "cut"), "workers=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds_done"] == 3
    assert outcome(tmp_path / "cut")[0] == outcome(tmp_path / "whole")[0]
    assert outcome(tmp_path / "cut")[2] == outcome(tmp_path / "whole")[2]
    assert (from_file(tmp_path / "cut" / "config.toml").workers, 1) == (2, 1)


def test_what_decides_last_bits_may_not_change():
    assert not HARMLESS & {
        "accelerate",
        "group_clients",
        "device",
        "precision",
        "threads",
        "select_rows",
        "evaluate.batch",
    }
    one, other = tiny(), msgspec.structs.replace(tiny(), group_clients=2, workers=3)
    assert changed_settings(one, other) == {"workers": (1, 3), "group_clients": ("off", 2)}
    with pytest.raises(RunError, match=r"\(group_clients is 2 and was 'off'\)"):
        check_settings(Path("run"), one, other)


def files(folder):
    """All that a run left, apart from what depends on the clock and on how it began."""
    apart = {"summary.json", "seconds.json", "identity.json", "config.toml"}
    every = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file() and path.name not in apart}
    return {str(name): path.read_bytes() for name, path in every.items()}, from_file(folder / "config.toml")


@pytest.mark.parametrize("way", ["argument", "command", "edit"])
@pytest.mark.parametrize("over", mostly_slow([True, False], quick=1))
def test_more_rounds_give_the_bytes_of_one_long_run(tmp_path, way, over):
    """The short run evaluates its last round, which the long one does not: it must not show."""
    short = tiny(method="standalone", rounds=3, checkpoint_every=2, evaluate=Evaluate(every=2, samples=20))
    run(msgspec.structs.replace(short, rounds=7), out=tmp_path / "long")
    if over:
        run(short, out=tmp_path / "run")
    else:
        with pytest.raises(KeyboardInterrupt):
            run(short, out=tmp_path / "run", callbacks=[Stop(rounds=2)])
    if way == "argument":
        with pytest.raises(KeyboardInterrupt):  # and it may be interrupted itself
            resume(tmp_path / "run", rounds=7, callbacks=[Stop(jobs=3)])
        resume(tmp_path / "run")
    elif way == "command":
        assert main(["resume", str(tmp_path / "run"), "rounds=7"]) == 0
    else:
        edit(tmp_path / "run", "rounds = 3", "rounds = 7")
        resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "long")
    assert files(tmp_path / "run") == files(tmp_path / "long")


def test_the_best_round_is_that_of_the_long_run(tmp_path):
    """The last round of the short run may be its best, and is not evaluated in the long one."""
    short = tiny(rounds=3, evaluate=Evaluate(every=4, samples=20))
    assert run(short, out=tmp_path / "run").summary["best"]["round"] == 3
    whole = run(msgspec.structs.replace(short, rounds=5), out=tmp_path / "long").summary["best"]
    assert resume(tmp_path / "run", rounds=5).summary["best"] == whole


def test_fewer_rounds_end_where_the_run_is(tmp_path):
    short = tiny(rounds=3, evaluate=Evaluate(every=2, samples=20))
    run(short, out=tmp_path / "short")
    with pytest.raises(KeyboardInterrupt):
        run(msgspec.structs.replace(short, rounds=6), out=tmp_path / "run", callbacks=[Stop(rounds=3)])
    with pytest.raises(RunError, match=r"rounds cannot be 2, as the run began with 6: 3 rounds are done"):
        resume(tmp_path / "run", rounds=2)
    resume(tmp_path / "run", rounds=3)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "short")


def test_milestones_can_be_extended_and_cosine_cannot(tmp_path):
    local = msgspec.structs.replace(tiny().local, schedule="steps", milestones=(2,), lr_decay=0.1)
    short = tiny(rounds=2, local=local)
    run(short, out=tmp_path / "run")
    run(msgspec.structs.replace(short, rounds=3), out=tmp_path / "long")
    resume(tmp_path / "run", rounds=3)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "long")
    run(tiny(rounds=2, local=msgspec.structs.replace(local, schedule="cosine")), out=tmp_path / "cosine")
    with pytest.raises(RunError, match=r"rounds cannot be 3, as the run began with 2: with local\.schedule=cosine"):
        resume(tmp_path / "cosine", rounds=3)
    edit(tmp_path / "cosine", "rounds = 2", "rounds = 3")
    with pytest.raises(RunError, match=r"local\.schedule=cosine"):
        resume(tmp_path / "cosine")


def test_a_server_that_counts_rounds_cannot_be_extended(tmp_path):
    experiment = tiny(
        method="fedmorph",
        options={"every": 2},
        rounds=2,
        data=msgspec.structs.replace(tiny().data, public_share=0.25),
        fleet=FleetSettings(clients=4, per_round=2, levels="a"),
    )
    run(experiment, out=tmp_path / "run")
    with pytest.raises(RunError, match=r"what fedmorph does between rounds depends on their number"):
        resume(tmp_path / "run", rounds=4)


def test_another_machine_is_told(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        run(tiny(rounds=2), out=tmp_path / "run", callbacks=[Stop(rounds=1)])
    here = identity_module.machine.processor()
    monkeypatch.setattr(identity_module.machine, "processor", lambda: {**here, "torch": "9.9", "model": "Abacus"})
    with collect() as events:
        resume(tmp_path / "run")
    (event,) = [event for event in events if event.kind == "another machine"]
    assert "torch is '9.9' and was" in event.message
    assert "model is 'Abacus'" in event.message
    assert "last bits of figures may differ" in event.message
    monkeypatch.undo()
    with collect() as events:
        resume(tmp_path / "run")
    assert [event for event in events if event.kind == "another machine"] == []


def test_a_directory_without_a_whole_identity_is_refused(tmp_path):
    run(tiny(rounds=1), out=tmp_path / "run")
    (tmp_path / "run" / "identity.json").write_text("{")
    with pytest.raises(RunError, match=r"identity\.json cannot be read: .*; put back a copy"):
        resume(tmp_path / "run")
    (tmp_path / "run" / "identity.json").unlink()
    with pytest.raises(RunError, match=r"identity\.json is missing, .*: put back a copy"):
        resume(tmp_path / "run")


def test_named_data_is_recognised(tmp_path):
    """Data that the settings name may change too: other files in data.dir."""
    with pytest.raises(KeyboardInterrupt):
        run(tiny(rounds=2), out=tmp_path / "run", callbacks=[Stop(rounds=1)])
    path = tmp_path / "run" / "identity.json"
    record = json.loads(path.read_text())
    record["dataset"]["parts"]["samples"] = "0" * 64
    path.write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"the dataset 'digits' is not the one .* its samples differ"):
        resume(tmp_path / "run")


def test_models_by_name_keep_their_name(tmp_path):
    result = run(tiny(rounds=1, model=Model(name="cnn", options={"widths": [4, 4]})), out=tmp_path / "run")
    assert result.summary["model"] == "cnn"
    assert not (tmp_path / "run" / "config.toml").read_text().startswith("#")
