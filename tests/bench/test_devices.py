"""Messages of devices hold little more than slices; the rest is measured, and judged by who reads it."""

import pytest

from bench import measure
from bench.devices import devices
from tests.flower.federation import needs_flower

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), needs_flower]


def test_messages_are_as_large_as_slices():
    results = measure(devices, quick=True)
    figures = {figure["name"]: figure for figure in results["figures"]}
    assert 1 < figures["largest message of resnet18 a–e"]["value"] <= 1.02
    assert figures["disk of the SuperLink"]["value"] > 40
    assert all(figure["value"] > 0 for figure in figures.values())
    ((_, rows),) = [(table["title"], table["rows"]) for table in results["tables"]]
    assert [level for level, _ in rows] == list("abcde")
