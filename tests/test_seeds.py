"""Streams: what is drawn from one disturbs nothing else."""

import pytest
import torch

from nestling.seeds import drawing


def test_what_is_drawn_inside_changes_nothing_outside():
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    with drawing(0, "dropout", 1):
        inside = torch.rand(4)
    assert torch.equal(torch.rand(4), wanted)
    assert not torch.equal(inside, wanted)


def test_an_error_inside_leaves_the_generator_as_it_was():
    before = torch.get_rng_state()
    with pytest.raises(KeyError), drawing(0, "dropout", 1):
        {}[float(torch.rand(()))]
    assert torch.equal(torch.get_rng_state(), before)


def test_names_tell_streams_apart():
    drawn = []
    for name in (("dropout", 1), ("dropout", 2), ("dropout", 1)):
        with drawing(0, *name):
            drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
