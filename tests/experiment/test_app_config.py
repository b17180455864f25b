import pytest

from nestling.errors import NestlingError
from nestling.experiment.app_config import configured, node_config, rules_of


def test_keys_of_a_run():
    rules = rules_of({"deadline": 60, "merge-order": "arrival", "out": "runs/first"})
    assert (rules.deadline, rules.merge_order, rules.min_nodes) == (60.0, "arrival", 1)
    assert configured("heterofl-digits", {"settings": "rounds=3 local.lr=0.05", "min-nodes": 2}).local.lr == 0.05


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"deadline": "soon"}, "the key deadline of a run must be like 3600.0, not 'soon'"),
        ({"min-nodes": 2.5}, "min-nodes"),
        ({"min-nodes": 0}, "min-nodes"),
        ({"merge-order": "job"}, "did you mean 'jobs'"),
        ({"min-coverage": 2.0}, "min-coverage"),
        ({"deadlin": 3}, "did you mean 'deadline'"),
        ({"settings": "round=3"}, "round"),
    ],
)
def test_other_keys_and_values_are_refused(config, words):
    with pytest.raises(NestlingError, match=words):
        both(config)


def both(config):
    return rules_of(config), configured("heterofl-digits", config)


@pytest.mark.parametrize(
    "config", [{"client": -1}, {"client": True}, {"partition-id": "3"}, {"client": 0, "level": "z"}]
)
def test_what_is_no_node_is_refused(config):
    with pytest.raises(NestlingError, match=r"number of a client|level"):
        node_config(config)
