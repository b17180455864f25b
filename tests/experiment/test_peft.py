"""Models of peft in runs: mixed ranks learn, and their sub-models are taken home."""

import math
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch

import nestling
from nestling.experiment import find
from nestling.tasks import next_token
from tests.experiment import own_families as own
from tests.experiment.own_source import adapted
from tests.run_cases import same_state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (find_spec("peft") and find_spec("transformers")), reason="needs peft"),
]
FEW = [
    "rounds=2",
    "local.epochs=1",
    "data.max_samples=300",
    "fleet.clients=6",
    "fleet.per_round=4",
    "fleet.levels=a-b-c",
]


def federated(out=None, **options):
    """The digits of eight clients, half of which train a quarter of the rank."""
    images, classes = own.digits()
    clients = own.dealt(8, images[:1200, None], classes[:1200])
    test = images[1200:, None], classes[1200:]
    return nestling.federate(
        adapted(),
        clients,
        test=test,
        method="lora",
        levels="a-c",
        rounds=4,
        lr=0.01,
        options=options,
        out=out,
        settings=["evaluate.every=4"],
    )


@pytest.mark.parametrize("options", [{}, {"merge": "factors"}, {"pick": "rolling"}])
def test_frozen_weights_and_adapters_of_two_ranks(options):
    result = federated(**options)
    accuracies = {level: figures["accuracy"] for level, figures in result.summary["final"]["submodels"].items()}
    least = 0.1 + 2 * math.sqrt(0.09 / 597)
    assert accuracies["a"] > least
    if "pick" not in options:  # first units that rolled on were trained apart from each other
        assert accuracies["c"] > least
    before, after = adapted().state_dict(), result.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if "lora_" not in name)
    assert not any(torch.equal(before[name], after[name]) for name in before if "lora_" in name)


def test_the_adapter_of_a_level_is_taken_home(tmp_path):
    result = federated(tmp_path / "run")
    loaded = nestling.load(tmp_path / "run", model=adapted())
    small = loaded.submodel(level="c")
    assert same_state(small.state_dict(), result.submodel("c").state_dict())
    assert small.peft_config["default"].r == 2
    file = loaded.export(tmp_path / "small.safetensors", "c")
    assert file.difference == 0.0
    tensors = import_module("safetensors.torch").load_file(tmp_path / "small.safetensors")
    assert tensors["base_model.model.1.lora_A.default.weight"].shape == (2, 64)
    assert tensors["base_model.model.1.base_layer.weight"].shape == (48, 64)
    small.save_pretrained(tmp_path / "adapter")
    again = import_module("peft").PeftModel.from_pretrained(adapted().unload(), tmp_path / "adapter").eval()
    images = own.digits()[0][:50, None]
    with torch.no_grad():
        torch.testing.assert_close(again(images), small(images))


def test_a_model_of_peft_by_its_name():
    name = "model.name=tests.experiment.own_source:adapted"
    result = nestling.run(find("lora-digits").with_settings([*FEW, name]))
    ranks = {axis: counts for axis, counts in result.summary["coverage"].items() if axis.endswith(".rank")}
    assert set(ranks) == {"base_model.model.1.lora.rank", "base_model.model.3.lora.rank"}
    assert all(counts[0] > counts[-1] for counts in ranks.values())


def test_the_number_of_workers_changes_no_bit():
    settings = [*FEW, "model.name=tests.experiment.own_source:adapted", "options.pick=rolling", "upload.format=topk"]
    results = [nestling.run(find("lora-digits").with_settings([*settings, f"workers={k}"])) for k in (1, 2)]
    assert same_state(results[0].state, results[1].state)
    assert results[0].rounds == results[1].rounds


def test_a_gpt2_learns_new_topics_with_mixed_ranks():
    """It has learned to repeat some topics, its weights are frozen, and adapters teach it to repeat others."""
    transformers, peft = import_module("transformers"), import_module("peft")
    torch.manual_seed(0)
    rows = own.topics(2000)
    topic = rows.mode(1).values
    known, new = rows[topic < 6], rows[topic >= 6]
    sizes = {"n_positions": 12, "n_embd": 32, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=own.TOKENS, **sizes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(100):
        batch = known[step * 32 % 768 :][:32]
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    test = new[-200:]
    with torch.no_grad():
        before = (model(test).logits[:, :-1].argmax(-1) == test[:, 1:]).double().mean().item()
    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True)
    result = nestling.federate(
        peft.get_peft_model(model, config),
        [{"input_ids": new[k:-200:8]} for k in range(8)],
        test={"input_ids": test},
        task=next_token(),
        method="lora",
        levels="a-b-c-d",
        rounds=6,
        epochs=2,
        lr=0.01,
        settings=["evaluate.every=6"],
    )
    accuracies = {level: figures["accuracy"] for level, figures in result.summary["final"]["submodels"].items()}
    assert [result.submodel(level).peft_config["default"].r for level in "abcd"] == [16, 8, 4, 2]
    # always the commonest token, or what the model knew before
    chance = max(torch.bincount(test.flatten()).max().item() / test.numel(), before)
    assert min(accuracies.values()) > chance + 2 * math.sqrt(0.25 / (200 * 11)), (accuracies, chance)
