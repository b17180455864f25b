"""Language models in federated rounds: figures, rows of words, populations, and the same bytes everywhere."""

import math

import pytest
import torch

import nestling
from nestling.data import Text, Vocabulary
from nestling.data.lazy import Lazy
from nestling.engines import LocalEngine
from nestling.errors import ConfigError, DataError
from nestling.experiment.callback import Callback
from nestling.experiment.presets import find
from nestling.experiment.simulation import Overrides, simulate
from nestling.experiment.simulator import Simulator
from nestling.methods.fedavg import fedavg
from nestling.methods.feddyn import with_feddyn
from nestling.server.state import ServerState
from nestling.settings import Data, Evaluate, FleetSettings, LocalTraining, Model
from tests.harness import worker_of
from tests.quick import mostly_slow
from tests.run_cases import outcome, same_state
from tests.words_cases import MLM, NWP, OPTIONS, double, masked, small


@pytest.mark.parametrize("method", mostly_slow(["heterofl", "fedavg", "fedrolex", "fed-dropout", "fjord"], quick=2))
def test_methods_predict_next_words(method):
    result = nestling.run(small(method=method))
    final = result.summary["final"]
    assert final["perplexity"] == pytest.approx(math.exp(final["global_loss"]))
    assert 0 <= final["accuracy_no_oov_eos"] <= final["accuracy_no_oov"] + 1
    assert final["perplexity"] < 230, "there are 200 words"
    assert final["worst_submodel"] == min(outcome["accuracy"] for outcome in final["submodels"].values())
    assert result.summary["local"] == {}
    assert 0 < result.rounds[0]["train_loss"] < 12, "FjORD's has two terms"


def test_what_is_missing_or_wrong_of_a_text_is_named():
    rows = torch.zeros(5, 9, dtype=torch.long)
    words = Vocabulary(tuple("abc"))
    with pytest.raises(ConfigError, match="own holds nothing to test on"):
        simulate(Overrides(small(), dataset=Text("own", "next-word", words, 8, users=Lazy(1000, lambda _: rows))))
    short = Text("own", "next-word", words, 8, users=Lazy(1000, lambda _: rows), test=[rows, rows[:, :8]])
    with pytest.raises(DataError, match=r"the test part of own has sequences of shape \(5, 8\)"):
        _ = simulate(Overrides(small(), dataset=short)).data.test


def test_masked_words_are_judged_by_perplexity():
    result = nestling.run(masked(rounds=3, evaluate=Evaluate(samples=40)))
    final, best = result.summary["final"], result.summary["best"]
    assert final["perplexity"] == final["perplexity_all"] == pytest.approx(math.exp(final["global_loss"]))
    assert {"perplexity_masked", "accuracy_masked"} <= final.keys()
    assert "global_accuracy" not in final
    assert final["worst_submodel"] == max(outcome["perplexity"] for outcome in final["submodels"].values())
    lowest = min(outcome["evaluation"]["perplexity"] for outcome in result.rounds)
    assert best["perplexity"] == lowest


def test_the_best_round_may_be_chosen_on_a_texts_own_validation_part():
    data = Data(name="words", partition="user", vocabulary_size=200, sequence_length=8, validation=0.5)
    final = nestling.run(small(data=data)).summary["final"]
    assert final["validation_perplexity"] != final["perplexity"]


def test_clients_may_keep_models_to_themselves():
    final = nestling.run(small(method="standalone", evaluate=Evaluate(every=2, samples=10))).summary["final"]
    assert final["perplexity"] > 1
    assert all(outcome.keys() >= {"accuracy", "perplexity"} for outcome in final["submodels"].values())


@pytest.mark.slow
def test_workers_and_resumption_change_no_byte(tmp_path):
    experiment = masked(select_rows=True, rounds=2, checkpoint_every=1)
    nestling.run(experiment, out=tmp_path / "one")
    nestling.run(experiment.with_settings(["workers=2"]), out=tmp_path / "two")
    one, two = outcome(tmp_path / "one"), outcome(tmp_path / "two")
    assert one[0] == two[0]
    assert one[2] == two[2]

    class Stop(Callback):
        def on_round(self, record, state):
            if record["round"] == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nestling.run(experiment, out=tmp_path / "three", callbacks=[Stop()])
    nestling.resume(tmp_path / "three")
    assert outcome(tmp_path / "three")[0] == one[0]
    assert outcome(tmp_path / "three")[2] == one[2]


@pytest.mark.parametrize(("name", "task"), [(NWP, "next-word"), (MLM, "masked-word")])
def test_rows_merge_from_those_who_hold_their_words_and_special_rows_from_everyone(name, task):
    """P7 and P8: the mask, padding, beginning and end always merge; words that nobody wrote stay as they were."""
    experiment = (small if task == "next-word" else masked)(
        rounds=1, local=LocalTraining(lr=0.5, epochs=1, batch_size=4)
    )
    result = nestling.run(experiment, model=double(name, task))
    simulation = result.simulation
    before, after = simulation.setup.model.state_dict(), result.state
    drawn = simulation.fleet.sample(1)
    held = torch.cat([simulation.partition.labels[client] for client in drawn]).unique().tolist()
    assert len(held) < 200
    for tensor, size in (("token.weight", 200 + simulation.dataset.special), ("head.weight", 200), ("head.bias", 200)):
        moved = {row for row in range(size) if not torch.equal(before[tensor][row], after[tensor][row])}
        assert moved <= set(held) | set(range(200, size)), "P8"
        assert {0, 1, 2} <= moved, "P7"
    assert simulation.setup.token_axes == ("token.0",)
    assert simulation.dataset.mask in (-1, 200)
    assert 200 in {
        row
        for row in range(200, len(before["token.weight"]))
        if not torch.equal(before["token.weight"][row], after["token.weight"][row])
    }, "P7: the row of the mask, or of padding"


def test_rows_become_the_mean_over_those_who_hold_them():
    """P2: of a word that one client holds, its row; of a word that two hold, their mean, whoever else took part."""
    experiment = small(rounds=1, fleet=FleetSettings(clients=40, per_round=5, levels="a"))
    simulation = simulate(Overrides(experiment, model=double()))
    worker, kept = worker_of(simulation), {}

    def work(job):
        reply = worker(job)
        for update in reply if isinstance(reply, list) else [reply]:
            (who,) = update.who  # who hold different words are not averaged before they are merged
            kept[who.client] = update
        return reply

    after, _ = Simulator(simulation, LocalEngine(lambda: work)).run_round(ServerState.start(simulation.setup))
    seen = set()
    for word in range(3, 200):
        holders = [client for client in kept if word in simulation.partition.labels[client].tolist()]
        if holders:
            seen.add(len(holders))
            mean = torch.stack([kept[client].state["head.weight"][word] for client in holders]).mean(0)
            assert torch.allclose(after.model["head.weight"][word], mean, rtol=1e-12, atol=1e-14)
    assert {1, 2} <= seen


def test_nothing_is_read_or_kept_of_clients_that_take_no_part():
    read = set()

    def make(user):
        read.add(user)
        return torch.randint(20, (5, 9), generator=torch.Generator().manual_seed(user))

    words = Vocabulary(tuple(map(str, range(20))), unknown=0)
    text = Text("counted", "next-word", words, 8, users=Lazy(342_477, make), test=[make(0)])
    experiment = small(fleet=FleetSettings(clients=342_477, per_round=6, levels="a-b"), rounds=2)
    read.clear()
    result = nestling.run(experiment, dataset=text)
    assert len(read) == 12, "six clients in each of two rounds"
    assert result.summary["rounds_done"] == 2


def test_a_larger_server_is_trained_by_clients_who_carry_a_part_of_it():
    """FedRolex with γ = 4: nobody trains the whole model, and all of it is trained."""
    fleet = FleetSettings(clients=1000, per_round=2, levels="c")
    experiment = small(method="fedrolex", rounds=16, fleet=fleet, evaluate=Evaluate(every=16, samples=8))
    result = nestling.run(experiment)
    begin = result.simulation.setup.model.state_dict()
    counts = result.summary["coverage"]
    assert all(min(units) > 0 for units in counts.values())
    body = [name for name in begin if name.startswith("blocks")]
    assert all((result.state[name] != begin[name]).any(-1).all() for name in body if begin[name].dim() == 2)


def test_the_length_of_sequences_may_exceed_the_papers_positions():
    data = Data(name="words", partition="user", vocabulary_size=200, sequence_length=70)
    simulation = simulate(Overrides(small(data=data)))
    assert simulation.setup.model.position.weight.shape[0] == 70
    assert simulate(Overrides(small())).setup.model.position.weight.shape[0] == 64, "as in the paper"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": Model(name="cnn")}, "the model cnn reads numbers, which words is not made of"),
        ({"data": Data(name="digits")}, "the model transformer-nwp reads words, which digits is not made of"),
        ({"model": Model(name=MLM, options=OPTIONS)}, "sees the words that it should predict"),
        (
            {"data": Data(name="words", partition="user", max_samples=10, vocabulary_size=200)},
            "data.max_samples is for images",
        ),
        (
            {"data": Data(name="words", partition="classes", classes_per_client=2)},
            "'iid' or 'user', not 'classes'",
        ),
        ({"data": Data(name="words", vocabulary_size=200)}, "words is a text by users: set data.partition=user"),
        ({"data": Data(name="words", partition="user", vocabulary_size=20)}, "at least 163, not 20"),
        ({"fleet": FleetSettings(clients=400_000)}, "400,000 clients are more than the 342,477 users"),
        ({"method": "fjord", "select_rows": True}, "select_rows needs a method with a masked loss"),
        ({"method": "standalone", "options": {"masked": True}, "select_rows": True}, "nothing private"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(changes, words):
    with pytest.raises((ConfigError, DataError), match=words):
        simulate(Overrides(small(**changes)))


@pytest.mark.slow
def test_lstms_read_characters_too():
    model = Model(name="lstm", options={"widths": [8, 8]})
    data = Data(name="words", partition="user", vocabulary_size=200, sequence_length=8)
    result = nestling.run(small(model=model, data=data, rounds=1, evaluate=Evaluate(samples=10)))
    assert result.simulation.setup.token_axes == ("token.0",)
    assert same_state(result.state, nestling.run(small(model=model, data=data, rounds=1)).state)


def test_fedrolexs_preset_runs_on_a_small_stack_overflow(tmp_path, monkeypatch):
    """The laptop preset as it stands, on files in the public layout."""
    monkeypatch.setenv("NESTLING_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "stackoverflow"
    for part, users in (("train", 4), ("test", 2)):
        (place / part).mkdir(parents=True)
        for user in range(users):
            lines = [f"how do i sort {kind} {user}" for kind in ("lists", "maps", "words")]
            (place / part / f"{user}.txt").write_text("\n".join(lines))
    few = ["rounds=2", "fleet.clients=4", "fleet.per_round=3", f"data.dir={tmp_path}", "evaluate.every=2"]
    for name in ("fedrolex-stackoverflow-a-b-c-d-e-laptop", "fedrolex-stackoverflow-server-x4-laptop"):
        final = nestling.run(find(name).with_settings(few)).summary["final"]
        assert final["accuracy_no_oov_eos"] is not None
        assert final["perplexity"] < 20


def test_feddyn_learns_next_words():
    """It needs nothing of images."""
    experiment = small(method="fedavg", rounds=2, fleet=FleetSettings(clients=20, per_round=6, levels="a"))
    method = with_feddyn(fedavg(masked=False), 0.1)
    plain = nestling.run(experiment, method=fedavg(masked=False))
    result = nestling.run(experiment, method=method)
    assert result.summary["final"]["perplexity"] > 1
    assert not same_state(plain.state, result.state)
