"""How bad input must be refused."""

import pytest

from nestling.errors import FleetError, NestlingError


def refused(call, *words):
    """`call` raises `FleetError`, in one sentence that holds all `words`."""
    with pytest.raises(NestlingError) as caught:
        call()
    text = str(caught.value)
    assert type(caught.value) is FleetError
    assert "\n" not in text
    assert 20 < len(text) < 1000
    for word in words:
        assert word in text, text
