"""Where a run is done changes no bit of it, and slices take memory only while somebody works on them."""

import importlib
import json
import warnings
import weakref
from importlib.util import find_spec

import pytest
import torch
import torch.fx.experimental._config
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nestling.client.submodels import build
from nestling.data import Lazy, from_arrays
from nestling.engines import LocalEngine
from nestling.errors import NestlingError
from nestling.experiment.runner import run
from nestling.experiment.simulated_clients import _Slices
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.kernels.kn2row import Kn2row
from nestling.methods import make
from nestling.methods.messages import JobEnvelope, NormStatisticsJob, TestJob
from nestling.methods.sgd import Optimizer
from nestling.server.state import ServerState
from nestling.settings import Data, Evaluate, FleetSettings, LocalTraining, Model
from tests.harness import engine_of, train_job, worker_of
from tests.run_cases import Deadly, outcome, same_state, small

ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'nestling[ray]'")
SHORT = {"rounds": 2, "evaluate": Evaluate(every=2, samples=100, norm_batch=50)}


# ---- slices


def test_a_slice_lives_while_somebody_works_on_it(monkeypatch):
    """Random sets: every client has a slice of its own, and none may wait for all the others."""
    fleet = FleetSettings(clients=8, per_round=8, levels="b-d")
    simulation = simulate(Overrides(small(method="fed-dropout", fleet=fleet, group_clients="off")))
    alive, most = weakref.WeakSet(), []
    whole = ServerState.download

    def watched(state, *rest):
        sent = whole(state, *rest)
        alive.update(sent.values())
        most.append(len(alive) / len(sent))
        return sent

    monkeypatch.setattr(ServerState, "download", watched)
    Simulator(simulation, engine_of(simulation)).run_round(ServerState.start(simulation.setup))
    assert len(most) == 8
    assert max(most) <= 2


def test_a_slice_that_many_get_is_cut_and_shared_once():
    class Noting:
        shared = 0

        def share(self, value):
            self.shared += 1
            return [value]

    engine = Noting()
    slices = _Slices(engine, lambda plan: {"of": plan}, ["a", "b", "a", "a"])
    first = slices.get("a")
    assert slices.get("a") is first
    slices.done("a")
    slices.done("a")
    assert slices.get("a") is first
    assert engine.shared == 1
    slices.done("a")
    assert slices.get("a") is not first  # it was let go: a client that is tried again has it cut again


def test_jobs_are_made_when_they_are_handed_out():
    read = []
    jobs = Lazy(5, lambda index: read.append(index) or index, keep=0)
    engine = LocalEngine(lambda: abs)
    replies = engine.work(jobs)
    assert next(replies).value == 0
    assert read == [0]
    assert jobs[1:3] == [1, 2]
    with pytest.raises(IndexError):
        jobs[5]


# ---- workers


class Closure(nn.Module):
    """A model of a kind that cannot be pickled."""

    def __init__(self, classes=10):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))
        self.change = lambda x: x * 2

    def forward(self, x):
        return self.layers(self.change(x))


@pytest.mark.slow
def test_models_that_cannot_be_sent_are_built_again_by_workers():
    named = small(**SHORT, model=Model(name=f"{__name__}:Closure"))
    one, two = run(named), run(named.with_settings(["workers=2"]))
    assert same_state(one.state, two.state)
    assert one.rounds == two.rounds


@pytest.mark.slow
def test_what_clients_keep_and_data_of_any_layout_reach_workers():
    """Images with channels last in memory: PyTorch chooses by that how to sum."""
    images = torch.randn(200, 8, 8, 3, generator=torch.Generator().manual_seed(0)).permute(0, 3, 1, 2)
    labels = torch.arange(200) % 4
    data = from_arrays(images, labels, test=(images[:50], labels[:50]))
    fleet = FleetSettings(clients=4, per_round=3, levels="a-b")
    settings = small(**SHORT, method="lg-fedavg", data=Data(), fleet=fleet)
    one, two = (run(settings.with_settings([f"workers={n}"]), dataset=data) for n in (1, 2))
    assert same_state(one.state, two.state)
    assert json.dumps(one.rounds) == json.dumps(two.rounds)


# ---- Ray


@pytest.mark.slow
@ray
def test_ray_gives_the_same_bytes_though_a_worker_dies(tmp_path):
    method = make("heterofl").with_parts(Deadly(str(tmp_path / "died")))
    # another loss would not be trained in groups, whose last bits are others
    one = run(small(**SHORT, group_clients="off"), method=make("heterofl"))
    two = run(small(**SHORT, group_clients="off", engine="ray", workers=2), method=method)
    assert (tmp_path / "died").exists()
    assert same_state(one.state, two.state)
    assert json.dumps(one.rounds) == json.dumps(two.rounds)
    assert one.rounds[0]["dropped"] == 0
    assert not importlib.import_module("ray").is_initialized()  # what we began, we end


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["engine=rai"], "engine"),
        (["address=auto"], "it needs engine=ray"),
        (["device=gpu"], "cpu, cuda, cuda:0, cuda:1, … or mps"),
        (["device=cuda:99"], "cuda:99"),
        (["device=mps"], "mps"),
        (["precision=mixed"], "precision=mixed is for GPUs"),
        (["precision=half"], "precision"),
        (["engine=ray", "device=cuda:1"], "use device=cuda"),
    ],
)
def test_what_this_machine_cannot_do_is_refused_in_one_sentence(changes, words, tmp_path):
    with pytest.raises(NestlingError) as caught:
        run(small().with_settings(changes), out=tmp_path / "run")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


# ---- devices


class Far(TorchDispatchMode):
    """Lets tensors without values stand in for those of another device: whatever meets must be on the same one.

    What comes back to the CPU is zero.
    """

    moves = ("_to_copy", "copy_", "_local_scalar_dense", "index", "index_put_")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function._schema.name.removeprefix("aten::")
        update_found = []
        torch.utils._pytree.tree_map_only(torch.Tensor, update_found.append, (args, kwargs))
        places = {tensor.device.type for tensor in update_found if tensor.dim()}
        assert len(places) < 2 or name in self.moves, f"{name} mixes {places}"
        if name == "_local_scalar_dense" and args[0].is_meta:
            return args[0].dtype == torch.bool or 0.0
        if name == "_to_copy" and args[0].is_meta and kwargs.get("device") == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name == "index_put_" and args[0].is_meta:
            assert all(index.is_meta for index in args[1]), "an index of another device has to wait for it"
        return function(*args, **kwargs)


@pytest.mark.parametrize("method", ["heterofl", "fjord", "fedprox"])
def test_models_batches_and_losses_are_on_the_device_and_states_on_the_cpu(method):
    data = Data(name="digits", max_samples=400, partition="classes", classes_per_client=3, augment="crop-flip")
    simulation = simulate(Overrides(small(method=method, data=data)))
    worker, job = worker_of(simulation, torch.device("meta")), train_job(simulation, 0, 0.5)
    plan, state = job.job.plan, job.state
    chosen = torch.fx.experimental._config.patch(meta_nonzero_assume_all_nonzero=True)  # FjORD picks by a mask
    with chosen, Far(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter")
        update = worker(job)
        outcome = worker(JobEnvelope(NormStatisticsJob(plan, (0, 1), 50), state))
        logits = worker(JobEnvelope(TestJob(plan, "test", 0, 30, 500), state))
    assert all(
        parameter.is_meta for entry in worker._submodels._cache.values() for parameter in entry.model.parameters()
    )
    for tensor in [*update.state.values(), *outcome[0].values(), logits]:
        assert tensor.device.type == "cpu"
    assert all(value.dtype == torch.float64 for value in outcome[0].values())


def test_memory_formats_that_were_measured_on_the_cpu_are_for_the_cpu():
    simulation = simulate(Overrides(small()))
    for device, last in (("cpu", True), ("meta", False)):
        net = build(simulation.setup, simulation.setup.submodel_plan(1.0), 1.0, torch.device(device))
        weights = [module.weight for module in net.modules() if isinstance(module, nn.Conv2d)]
        assert {weight.device.type for weight in weights} == {device}
        assert weights[1].is_contiguous(memory_format=torch.channels_last) is last


@pytest.mark.slow
@pytest.mark.parametrize("method", ["heterofl", "fjord"])
def test_wide_nets_make_the_same_bytes_with_any_number_of_workers(method, tmp_path):
    wide = Model(name="cnn", options={"widths": [4, 8, 256, 256]})
    experiment = small(method=method, model=wide, rounds=2, fleet=FleetSettings(clients=4, per_round=3, levels="a-b"))
    simulation = simulate(Overrides(experiment))
    net = build(simulation.setup, simulation.setup.submodel_plan(1.0), 1.0)
    assert [type(module) for module in net.modules() if isinstance(module, nn.Conv2d)][-1] is Kn2row
    for workers in (1, 2):
        run(experiment.with_settings([f"workers={workers}"]), out=tmp_path / str(workers))
    assert outcome(tmp_path / "1") == outcome(tmp_path / "2")


def test_no_tensor_of_a_job_is_made_where_pytorch_likes():
    """With another default device, everything must still be where the experiment says."""
    simulation = simulate(Overrides(small(method="fjord")))
    job = train_job(simulation, 0, 0.5)
    wanted = worker_of(simulation)(job)
    torch.set_default_device("meta")
    try:
        update_found = worker_of(simulation)(job)
    finally:
        torch.set_default_device(None)
    assert same_state(update_found.state, wanted.state)
    assert update_found.progress == wanted.progress


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_mixed_precision_learns_what_full_precision_does(half):
    """The CPU can do what GPUs do, only slowly: the same steps, up to rounding."""
    learned = {}
    for kind in (None, half):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        inputs = torch.randn(64, 8)
        targets = (inputs[:, 0] > 0).long()
        parameters = list(net.parameters())
        optimizer = Optimizer(parameters, LocalTraining(momentum=0.0, weight_decay=0.0, clip_norm=1.0), 0.5, kind)
        seen = set()
        for _ in range(30):
            with optimizer.forward():
                logits = net(inputs)
                loss = nn.functional.cross_entropy(logits, targets)
            seen.add(logits.dtype)
            optimizer.step(loss)
        learned[kind] = loss.item()
        assert seen == {kind or torch.float32}
        assert all(parameter.grad is None for parameter in parameters)
    assert learned[half] == pytest.approx(learned[None], rel=0.1)
    assert learned[half] < 0.3


def test_mixed_precision_reaches_the_training_loop():
    """A step in half precision is another than one in full, and its weights stay in full precision."""
    simulation = simulate(Overrides(small(local=LocalTraining(lr=0.05, epochs=1, batch_size=20))))
    job = train_job(simulation, 0, 0.5)
    full, mixed = worker_of(simulation), worker_of(simulation)
    mixed._half = torch.bfloat16
    one, two = full(job), mixed(job)
    assert not same_state(one.state, two.state)
    assert all(two.state[name].dtype == tensor.dtype for name, tensor in one.state.items())
    assert two.progress.loss == pytest.approx(one.progress.loss, rel=0.05)
