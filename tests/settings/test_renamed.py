"""Settings of version 0.1: files with their old names load; other uses are refused by naming the new one."""

import pytest
import tomli_w

from nestling.errors import ConfigError
from nestling.settings import Data, Evaluate, Experiment, LocalTraining, ServerSettings, Upload, with_new_names
from nestling.settings.renamed import RENAMED

TABLES = {"": Experiment, "data": Data, "local": LocalTraining, "server": ServerSettings, "upload": Upload}
TABLES["evaluate"] = Evaluate


def parts(name):
    table, _, key = name.rpartition(".")
    return table, key


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_names_load_from_files_and_are_refused_elsewhere(old, new):
    table, key = parts(new)
    settings = getattr(Experiment(), table) if table else Experiment()
    value = getattr(settings, key)  # every new name is a setting
    changed = {str: "off", bool: not value, int: value + 1 if isinstance(value, int) else 0, float: 0.25}.get(
        type(value)
    )
    changed = "masked" if new == "data.loss_positions" else changed
    nested = {parts(old)[0]: {parts(old)[1]: changed}} if table else {old: changed}
    loaded = Experiment.from_toml(tomli_w.dumps(nested))
    assert getattr(getattr(loaded, table) if table else loaded, key) == changed != value
    assert Experiment.from_toml(loaded.to_toml()) == loaded
    with pytest.raises(ConfigError, match=rf"^the setting {old} is now called {new}$"):
        Experiment().with_settings([f"{old}={changed}"])
    with pytest.raises(ConfigError, match=rf"^the setting {old} is now called {new}$"):
        TABLES[table](**{parts(old)[1]: changed})
    with pytest.raises(AttributeError, match=rf"^the setting {old} is now called {new}$"):
        getattr(settings, parts(old)[1])


def test_both_names_of_a_setting_are_one_too_many():
    for both in ({"batch": 3, "batch_size": 4}, {"batch_size": 4, "batch": 3}):
        with pytest.raises(ConfigError, match=r"local\.batch is now called local\.batch_size: set one of the two"):
            with_new_names({"local": both})


def test_names_inside_of_options_stay():
    settings = {"options": {"select": 1}, "model": {"options": {"batch": 2, "cohort": 3}}}
    assert with_new_names(settings) == settings


def test_settings_that_never_existed_have_no_other_name():
    assert not hasattr(Experiment(), "nothing")
    with pytest.raises(ConfigError, match=r"there is no setting 'local\.btch'"):
        Experiment().with_settings(["local.btch=3"])
