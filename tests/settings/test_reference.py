"""The reference of settings: nothing is missing, and what it says of accepted values holds."""

import re

import msgspec
import pytest

from nestling.docstrings import entries
from nestling.errors import NestlingError
from nestling.methods.registry import PARTS
from nestling.settings import Experiment
from nestling.settings.reference import choices, reference, tables
from nestling.settings.validation import built

ROWS = reference()


def leaves(value, path=""):
    """The dotted names and values of nested settings; options are one setting."""
    for key, inner in value.items():
        if isinstance(inner, dict) and key != "options":
            yield from leaves(inner, f"{path}{key}.")
        else:
            yield path + key, inner


def test_every_setting_has_a_row_with_a_meaning_and_its_default():
    assert {row.name: row.default for row in ROWS} == dict(leaves(msgspec.to_builtins(Experiment())))
    for row in ROWS:
        assert re.search(r"\w{3,}.*\.$", row.meaning, re.S), row
        assert row.accepted, row
    assert all(about.endswith(".") for about in tables().values())


def test_docstrings_describe_no_setting_that_does_not_exist():
    kinds = {"": Experiment} | {
        field.name: field.type for field in msgspec.structs.fields(Experiment) if field.name in tables()
    }
    assert kinds.keys() == tables().keys()
    for kind in kinds.values():
        assert list(entries(kind.__doc__, "Attributes")) == [field.name for field in msgspec.structs.fields(kind)]


def test_all_parts_are_named():
    (row,) = (row for row in ROWS if row.name == "parts")
    assert set(PARTS) <= set(re.findall(r"[\w-]+", row.accepted))


def refused(row):
    """Values just beside those that a row accepts."""
    numbers = {word: int(number.replace(",", "")) for word, number in re.findall(r"([a-z]+) (\d[\d,]*)", row.accepted)}
    beside = {"from": -1, "to": 1, "above": 0, "most": 1, "below": 0}
    values = [str(number + beside[word]) for word, number in numbers.items() if word in beside]
    if "or more" in row.accepted:
        values.append("-1")
    if row.accepted.startswith(("a number", "a whole number", "a list", "true or false")) or choices(row.name):
        values.append("nonsense")
    return values


def test_what_is_beside_the_accepted_values_is_refused():
    tried = 0
    for row in ROWS:
        for value in refused(row):
            tried += 1
            with pytest.raises(NestlingError, match=row.name.rpartition(".")[2]):
                Experiment().with_settings([f"{row.name}={value}"])
    assert tried > 60


def test_every_choice_is_accepted_by_its_table():
    several = [row for row in ROWS if choices(row.name)]
    assert len(several) > 15
    for row in several:
        assert all(choice in row.accepted for choice in choices(row.name))
        table, _, field = row.name.rpartition(".")
        kind = {field.name: field.type for field in msgspec.structs.fields(Experiment)}.get(table, Experiment)
        if kind is Experiment:  # whose settings must also go together
            continue
        for choice in choices(row.name):
            given = choice == "true" if choice in ("true", "false") else choice
            assert getattr(built(kind, {field: given}), field) == given


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("local.lr", "a number above 0"),
        ("local.batch_size", "a whole number above 0, at most 10,000,000"),
        ("local.proximal", "a number 0 or more"),
        ("server.lr", "a number above 0"),
        ("server.beta1", "a number 0 or more and below 1"),
        ("data.validation", "a number from 0, below 1"),
        ("fleet.clients", "a whole number from 1 to 10,000,000"),
        ("local.milestones", "a list of whole numbers"),
    ],
)
def test_accepted_values(name, accepted):
    assert [row.accepted for row in ROWS if row.name == name] == [accepted]
