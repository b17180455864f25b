"""Models of many families are federated by one call, and their sub-models are better than chance by two deviations."""

import math

import pytest
import torch
from torch import nn

import nestling
from nestling.tasks import masked_token, next_token
from tests.experiment import own_families as own

needs_transformers = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("transformers"), reason="needs transformers"
)
needs_har = pytest.mark.skipif(not own.HAR.exists(), reason="needs UCI HAR")


def final(result, metric):
    """The metric of every sub-model at the end."""
    return {level: figures[metric] for level, figures in result.summary["final"]["submodels"].items()}


def assert_above_chance(accuracies, samples, chance):
    """Each of them: guessing would give `chance`, with the deviation of so many independent samples."""
    assert samples >= 200
    least = chance + 2 * math.sqrt(chance * (1 - chance) / samples)
    assert min(accuracies.values()) > least, (accuracies, least)


def test_digits_as_sequences_with_an_lstm():
    torch.manual_seed(0)
    images, classes = own.digits()
    clients = own.dealt(8, images[:1200], classes[:1200])
    result = nestling.federate(
        own.Reader(8, 10),
        clients,
        test=(images[1200:], classes[1200:]),
        method="heterofl",
        levels="a-b",
        rounds=4,
        epochs=2,
        lr=0.01,
        settings=["evaluate.every=4"],
    )
    assert_above_chance(final(result, "accuracy"), 597, 0.1)
    small = result.submodel("b")
    with torch.no_grad():
        right = (small(images[1200:]).argmax(1) == classes[1200:]).double().mean().item()
    assert right == pytest.approx(final(result, "accuracy")["b"])


def test_a_regression_with_a_perceptron():
    torch.manual_seed(0)
    x, y = own.diabetes()
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    result = nestling.federate(
        net,
        (x[:240], y[:240]),
        test=(x[240:], y[240:]),
        num_clients=8,
        method="heterofl",
        levels="a-b",
        rounds=8,
        epochs=2,
        lr=0.005,
        settings=["evaluate.every=8"],
    )
    # the mean squared error of guessing the mean is 1, with a deviation of about sqrt(2 / 202)
    assert max(final(result, "loss").values()) < 1 - 2 * math.sqrt(2 / 202)


def test_a_frozen_backbone_with_a_trained_head():
    torch.manual_seed(0)
    images, classes = own.digits()
    backbone = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
    backbone.requires_grad_(False)
    net = nn.Sequential(backbone, nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10))
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    result = nestling.federate(
        net,
        (images[:1200, None], classes[:1200]),
        test=(images[1200:, None], classes[1200:]),
        num_clients=8,
        method="heterofl",
        levels="a-b",
        rounds=4,
        lr=0.01,
        settings=["evaluate.every=4"],
    )
    assert_above_chance(final(result, "accuracy"), 597, 0.1)
    trained = result.model[0].state_dict()
    assert all(torch.equal(trained[name], tensor) for name, tensor in before.items())
    assert result.summary["bytes_setup"] > 0


@pytest.mark.slow
@needs_har
@pytest.mark.parametrize(("net", "rounds"), [(lambda: own.Reader(9, 6), 8), (own.waves, 5)])
def test_activities_by_person(net, rounds):
    torch.manual_seed(0)
    people, test = own.by_person(step=6)
    result = nestling.federate(
        net(),
        people,
        test=test,
        method="heterofl",
        levels="a-b",
        rounds=rounds,
        lr=0.01,
        settings=["evaluate.every=100"],
    )
    assert_above_chance(final(result, "accuracy"), len(test[1]), 1 / 6)


@pytest.mark.slow
@needs_transformers
def test_digits_with_a_vision_transformer():
    from transformers import ViTConfig, ViTForImageClassification  # noqa: PLC0415

    torch.manual_seed(0)
    images, classes = own.digits()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    net = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=10, **sizes))
    clients = [{"pixel_values": x[:, None], "labels": y} for x, y in own.dealt(8, images[:1200], classes[:1200])]
    test = {"pixel_values": images[1200:, None], "labels": classes[1200:]}
    result = nestling.federate(
        net,
        clients,
        test=test,
        method="heterofl",
        levels="a-b",
        rounds=6,
        epochs=2,
        lr=0.005,
        settings=["evaluate.every=6"],
    )
    assert_above_chance(final(result, "accuracy"), 597, 0.1)


@pytest.mark.slow
@needs_transformers
def test_which_play_a_line_is_from_with_distilbert():
    from transformers import DistilBertConfig, DistilBertForSequenceClassification  # noqa: PLC0415

    torch.manual_seed(0)
    lines, plays = own.lines_of(["hamlet", "merry_wives_of_windsor"], 24, 650)
    sizes = {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 24}
    net = DistilBertForSequenceClassification(DistilBertConfig(vocab_size=1500, dropout=0.0, **sizes))

    def some(start, stop):
        ids = lines[start:stop]
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": plays[start:stop]}

    clients = [some(start, start + 100) for start in range(0, 1000, 100)]
    result = nestling.federate(
        net,
        clients,
        test=some(1000, 1300),
        method="heterofl",
        levels="a-b",
        rounds=6,
        per_round=5,
        epochs=2,
        lr=0.003,
        settings=["evaluate.every=6"],
    )
    assert_above_chance(final(result, "accuracy"), len(plays[1000:]), 0.5)


@pytest.mark.slow
@needs_transformers
def test_next_letters_with_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415

    torch.manual_seed(0)
    letters = own.letters_of("hamlet", 32, 900)
    sizes = {"n_positions": 32, "n_embd": 32, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    net = GPT2LMHeadModel(GPT2Config(vocab_size=own.TOKENS, **sizes))
    clients = [{"input_ids": letters[k::10]} for k in range(9)]
    test = {"input_ids": letters[9::10]}
    result = nestling.federate(
        net,
        clients,
        test=test,
        task=next_token(padding=own.PADDING),
        method="heterofl",
        levels="a-b",
        rounds=12,
        per_round=5,
        epochs=2,
        lr=0.005,
        settings=["evaluate.every=12"],
    )
    letter = torch.bincount(letters[letters > 0]).max().item() / (letters > 0).sum().item()  # always the commonest one
    assert_above_chance(final(result, "accuracy"), (test["input_ids"][:, 1:] > 0).sum().item(), letter)


@pytest.mark.slow
@needs_transformers
def test_masked_tokens_with_bert():
    from transformers import BertConfig, BertForMaskedLM  # noqa: PLC0415

    torch.manual_seed(0)
    rows = own.topics(900)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    net = BertForMaskedLM(BertConfig(vocab_size=own.TOKENS, max_position_embeddings=12, **sizes, **still))
    clients = [{"input_ids": rows[k::10], "attention_mask": torch.ones_like(rows[k::10])} for k in range(8)]
    test = {"input_ids": rows[8::5], "attention_mask": torch.ones_like(rows[8::5])}
    result = nestling.federate(
        net,
        clients,
        test=test,
        task=masked_token(mask=own.MASK, share=0.3),
        method="heterofl",
        levels="a-b",
        rounds=7,
        epochs=2,
        lr=0.005,
        settings=["evaluate.every=7"],
    )
    commonest = torch.bincount(rows.flatten()).max().item() / rows.numel()
    masked = int(0.2 * test["input_ids"].numel())  # 30 % are masked, give or take
    assert_above_chance(final(result, "accuracy_masked"), masked, commonest)


@pytest.mark.slow
def test_segmentation_with_a_unet():
    torch.manual_seed(0)
    images, pixels = own.inked_digits()
    result = nestling.federate(
        own.UNet(3),
        own.dealt(8, images[:800], pixels[:800]),
        test=(images[1500:], pixels[1500:]),
        method="heterofl",
        levels="a-b",
        rounds=6,
        lr=0.01,
        settings=["evaluate.every=6"],
    )
    commonest = torch.bincount(pixels[1500:].flatten()).max().item() / pixels[1500:].numel()
    assert_above_chance(final(result, "pixel_accuracy"), len(images[1500:]), commonest)
    assert min(final(result, "mean_iou").values()) > commonest / 3  # paper everywhere overlaps with one class of three
