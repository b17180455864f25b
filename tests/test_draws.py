"""Random numbers come from the generator that is set for a thread, and nobody else's are touched."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from nestling.draws import DrawnInBackward, counted_draws, current_generator, drawing, no_draws
from nestling.kernels.seeded_dropout import Draws, SeededDropout, find_draws, seed_dropout


def every_random_operation():
    x, q = torch.ones(4, 8), torch.ones(1, 2, 4, 8)
    return [
        F.dropout(x, 0.5),
        nn.Dropout2d(0.5)(torch.randn(2, 3, 4, 4)),
        nn.AlphaDropout(0.5)(x),
        nn.RReLU()(x - 2),
        torch.rand(3),
        torch.randn(3),
        torch.randint(5, (3,)),
        torch.randint(2, 5, (3,)),
        torch.randperm(4),
        torch.rand_like(x, dtype=torch.float64),
        torch.randn_like(x.t()),
        torch.randint_like(x, 5),
        torch.randint_like(x, 2, 5),
        torch.normal(0.0, 1.0, (3,)),
        torch.normal(x, 1.0),
        torch.bernoulli(torch.rand(3)),
        torch.poisson(torch.rand(3)),
        torch.multinomial(torch.rand(3), 2),
        torch.empty(3).exponential_(),
        torch.empty(3).uniform_(-1, 1),
        torch.empty(3).random_(7),
        F.scaled_dot_product_attention(q, q, q, dropout_p=0.3),
        F.gumbel_softmax(x),
        nn.LSTM(4, 4, 2, dropout=0.3)(torch.randn(3, 2, 4))[0].detach(),
        nn.MultiheadAttention(8, 2, dropout=0.1)(q[0], q[0], q[0])[0].detach(),
        nn.init.trunc_normal_(torch.empty(3)),
        nn.init.orthogonal_(torch.empty(3, 3)),
    ]


def test_all_operations_draw_what_a_seeded_pytorch_would():
    torch.manual_seed(7)
    wanted = every_random_operation()
    before = torch.get_rng_state()
    with drawing(torch.Generator().manual_seed(7)):
        actual = every_random_operation()
    assert all(torch.equal(one, other) for one, other in zip(wanted, actual, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_generators_given_by_name_stay_in_charge():
    with drawing(torch.Generator().manual_seed(0)):
        actual = torch.rand(3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(actual, torch.rand(3, generator=torch.Generator().manual_seed(5)))


@pytest.mark.parametrize("shared", [False, True])
def test_an_error_inside_leaves_the_generator_as_it_was(shared):
    before = torch.get_rng_state()
    with pytest.raises(KeyError), drawing(torch.Generator().manual_seed(1), shared=shared):
        {}[float(torch.rand(()))]
    assert torch.equal(torch.get_rng_state(), before)
    assert current_generator() is None


def test_a_generator_goes_on_where_it_stopped():
    for shared in (False, True):
        generator = torch.Generator().manual_seed(4)
        with drawing(generator, shared=shared):
            first = torch.rand(2)
        with drawing(generator, shared=shared):
            second = torch.rand(2)
        torch.manual_seed(4)
        assert torch.equal(torch.cat([first, second]), torch.cat([torch.rand(2), torch.rand(2)]))


def test_threads_draw_from_their_own_while_another_draws_from_pytorch():
    stop, results = threading.Event(), {}

    def disturb():
        while not stop.is_set():
            torch.rand(10)

    def draw(seed):
        layer = SeededDropout(0.5)
        with drawing(torch.Generator().manual_seed(seed)):
            results[seed] = [torch.rand(50) for _ in range(100)] + [layer(torch.ones(50)) for _ in range(100)]

    noise = threading.Thread(target=disturb)
    noise.start()
    threads = [threading.Thread(target=draw, args=(seed,)) for seed in (1, 2)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        stop.set()
        noise.join(60)
    for seed in (1, 2):
        torch.manual_seed(seed)
        alone = [torch.rand(50) for _ in range(100)] + [F.dropout(torch.ones(50)) for _ in range(100)]
        assert all(torch.equal(one, other) for one, other in zip(results[seed], alone, strict=True))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_seeded_dropout_is_dropout(p, inplace):
    plain, seeded = nn.Dropout(p, inplace), nn.Dropout(p, inplace)
    seed_dropout(seeded)
    for shape in ((3, 4), (2, 3, 4, 4), (0, 3)):
        x = torch.randn(shape).contiguous(
            memory_format=torch.channels_last if len(shape) == 4 else torch.preserve_format
        )
        torch.manual_seed(9)
        wanted = plain(x.clone())
        with drawing(torch.Generator().manual_seed(9), everything=False):
            assert torch.equal(seeded(x.clone()), wanted)


def test_what_a_model_draws_is_found():
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    x = torch.zeros(2, 3)
    assert find_draws(nn.Linear(3, 3), x) == Draws(training=False, testing=False)
    assert find_draws(Noisy(), x) == Draws(training=True, testing=True)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    assert find_draws(model, x) == Draws(training=True, testing=False)
    seed_dropout(model)
    assert find_draws(model, x) == Draws(training=False, testing=False)
    assert counted_draws(lambda: model(x))[1] == 1


@pytest.mark.parametrize("layer", [nn.Dropout2d(0.5), SeededDropout(0.5)])
def test_a_forward_that_is_run_again_in_the_backward_pass_is_noticed(layer):
    weight = torch.ones(2, 3, 4, 4, requires_grad=True)

    def loss():
        return checkpoint(lambda x: layer(x * 2).square(), weight, use_reentrant=False).sum()

    with drawing(torch.Generator().manual_seed(0)):
        value = loss()
        with pytest.raises(DrawnInBackward), no_draws():
            value.backward()
    with drawing(torch.Generator().manual_seed(0), shared=True):
        value = loss()
        with no_draws():
            value.backward()
    assert torch.equal((weight.grad != 0).float() * 16, weight.grad / 2)  # the same units twice: (2·2·w)² / 2·w
