"""The command in summary.json repeats an experiment: parsed again, it gives the same settings."""

import shlex
from itertools import cycle

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nestling.errors import ConfigError
from nestling.experiment.presets import PRESETS, find
from nestling.experiment.record import command
from nestling.settings import Experiment

CHANGES = (
    "seed=3",
    "rounds=7",
    "local.lr=1e-05",
    "local.milestones=[3, 5]",
    "local.milestones=[]",
    "fleet.levels=a:0.5,e:0.5",
    "data.dir=a folder's name",
    'data.dir="5"',
    "group_clients=4",
    "group_clients=off",
    "parts=fedprox:0.01",
    "method=standalone",
    "model.name=mlp",
    "model.options={}",
    "model.options.widths=[4, 8]",
    "model.options={widths = [[4, 8], [16]]}",
    "options={}",
    "upload.fraction=0.25",
)


def again(experiment):
    """The experiment that the command describes, as a shell and `nestling run` read it."""
    program, verb, source, *settings = shlex.split(command(experiment))
    assert (program, verb) == ("nestling", "run")
    return find(source).with_settings(settings)


def test_the_command_of_every_preset_with_a_changed_setting_gives_the_same_experiment():
    for preset, change in zip(PRESETS.values(), cycle(CHANGES), strict=False):
        experiment = preset().with_settings([change])
        assert again(experiment) == experiment, (preset.name, change)
        assert again(preset()) == preset()


def test_the_command_of_some_presets_with_every_change():
    for preset in list(PRESETS.values())[::97]:
        for change in CHANGES:
            experiment = preset().with_settings([change, "seed=1"])
            assert again(experiment) == experiment, (preset.name, change)


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(st.text(max_size=5) | st.sampled_from(["widths", "a.b", "a=b", " a", "", "😀"]), VALUES, max_size=3)
)
def test_whatever_options_are_called(options):
    preset = find("heterofl-digits")
    try:
        experiment = msgspec.structs.replace(preset, model=msgspec.structs.replace(preset.model, options=options))
    except ConfigError:  # what config.toml cannot hold
        return
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    assert again(experiment) == experiment
