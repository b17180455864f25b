"""The headline: who is best, by how much, at what cost; and that it claims nothing that was not measured."""

import pytest

from nestling.report.headline import headline
from nestling.report.read import Evaluation, Level
from nestling.report.runs_by_seed import experiments
from tests.report.report_runs import run

WHOLE, HALF, TINY = Level(1.0, 90_000, 360_000, 5e6), Level(0.5, 23_000, 92_000, 2e6), Level(0.06, 500, 2000, 3e4)


def sized(name, method, accuracies, levels, **changes):
    """A run whose sub-models reach these accuracies, the largest first."""
    submodels = {level: {"accuracy": value} for level, value in zip("ace", accuracies, strict=False)}
    values = {"global_accuracy": accuracies[0], "worst_submodel": min(accuracies)}
    final = Evaluation(3, values, submodels)
    costs = dict(zip("ace", levels, strict=False))
    return run(name, method=method, final=final, best=final, levels=costs, **changes)


def large(**changes):
    """FedAvg of the large model: every level is the whole model."""
    return sized("fedavg-large-digits", "fedavg", [0.99] * 3, [WHOLE] * 3, bytes=10_000, client_macs=100, **changes)


def small():
    return sized("fedavg-small-digits", "fedavg", [0.62] * 3, [TINY] * 3, bytes=100, client_macs=1)


def mixed(name="fjord", accuracies=(0.975, 0.95, 0.9), **changes):
    changes = {"bytes": 2600, "client_macs": 24} | changes
    return sized(f"{name}-digits", name, accuracies, [WHOLE, HALF, TINY], **changes)


def said(*runs):
    result = headline(experiments(runs))
    return result.heading, " ".join(result.sentences), {tile["label"]: tile for tile in result.tiles}


def test_a_method_for_every_size_is_measured_by_the_large_model_on_every_device():
    rival = mixed("fedrolex", (0.98, 0.9, 0.5))
    heading, text, tiles = said(large(), small(), rival, mixed())
    assert heading == (
        "FjORD reaches 97.5 % accuracy with devices of every size: 1.5 points below the large model on all of them, "
        "for 26 % of the data sent"
    )
    assert "On digits (iid) after 3 rounds, its 3 sizes, from 500 to 90.0 k parameters, reach 90.0 % to 97.5 %." in text
    assert "FedAvg large reaches 99.0 %, but every device must train all 90.0 k parameters" in text
    assert "FedAvg small, which every device can train, reaches 62.0 %" in text
    assert (
        "Of 2 methods for mixed devices it has the highest mean over sizes; FedRolex has the best whole model, 98.0 %"
        in text
    )
    assert "and the best whole model." in said(large(), mixed(), mixed("heterofl", (0.97, 0.9, 0.8)))[1]
    assert "and a whole model as good as any." in said(large(), mixed(), mixed("heterofl", (0.975, 0.9, 0.8)))[1]
    assert tiles["Whole model"] == {"label": "Whole model", "value": "97.5 %", "note": "FedAvg large: 99.0 %"}
    assert tiles["Smallest of 3 sizes"]["value"] == "90.0 %"
    assert tiles["Data sent"]["value"] == "26 %"
    assert tiles["Client computation"]["value"] == "24 %"


def test_a_model_of_one_size_has_no_worst_sub_model():
    heading, text, tiles = said(large())
    assert heading == "FedAvg reaches 99.0 % accuracy"
    assert "sub-model" not in text + "".join(tiles)
    assert "size" not in text.lower()


def test_without_the_large_model_nothing_is_compared_with_it():
    heading, text, tiles = said(mixed())
    assert heading == "FjORD reaches 97.5 % accuracy, and 90.0 % with its smallest size"
    assert "large model" not in text
    assert tiles["Data sent"]["value"] == "2.54 KiB"


def test_a_small_model_on_every_device_is_not_taken_for_the_large_one():
    heading, text, _ = said(small(), mixed())
    assert "large model" not in heading + text


def test_the_large_model_of_other_data_is_no_measure():
    heading, text, _ = said(large(dataset="mnist"), mixed())
    assert heading == "2 experiments on 2 tasks"
    assert "points below" not in text


def test_a_large_model_of_another_kind_is_no_measure():
    assert "points below" not in said(large(model="resnet18"), mixed())[0]


def test_experiments_of_one_method_are_not_called_methods():
    assert "Of 2 experiments for" in said(mixed(), sized("other", "fjord", (0.9, 0.8, 0.7), [WHOLE, HALF, TINY]))[1]


def test_a_large_model_that_is_unfinished_is_no_measure():
    heading, _, _ = said(large(finished=False), mixed())
    assert "large model" not in heading


def test_better_than_the_large_model_is_said_so():
    assert "0.5 points above the large model" in said(large(), mixed(accuracies=(0.995, 0.95, 0.9)))[0]


def test_a_lead_within_the_spread_over_seeds_is_said_to_be():
    first = [mixed(accuracies=(value, value, value), seed=seed) for seed, value in enumerate((0.9, 0.96))]
    second = [mixed("heterofl", (0.92,) * 3, seed=seed) for seed in range(2)]
    assert "its lead over HeteroFL is less than the spread over seeds" in said(*first, *second)[1]
    second = [mixed("heterofl", (0.72,) * 3, seed=seed) for seed in range(2)]
    assert "spread over seeds" not in said(*first, *second)[1]


@pytest.mark.parametrize(
    ("accuracies", "phrase"),
    [
        ({"fedrolex": [0.912], "heterofl": [0.898]}, "1.4 points ahead of HeteroFL"),
        (
            {"fedrolex": [0.95, 0.85], "heterofl": [0.9, 0.88]},
            "1.0 points ahead of HeteroFL (less than the spread over",
        ),
        ({"fedrolex": [0.9], "heterofl": [0.9]}, "level with HeteroFL"),
    ],
)
def test_it_says_who_leads_and_whether_that_is_much(accuracies, phrase):
    runs = [
        run(method, seed, accuracy=value, method=method)
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    heading, text, _ = said(*runs)
    assert heading.startswith("FedRolex reaches 9")
    assert phrase in text
    assert "On digits (iid) after 3 rounds" in text
    assert "for 2.00 KiB sent" in text


def test_of_several_tasks_it_has_a_sentence_for_each():
    result = headline(experiments([run("a", dataset="mnist"), run("b", method="nefl")]))
    assert result.heading == "2 experiments on 2 tasks"
    assert [sentence.split("On ")[1].split()[0] for sentence in result.sentences] == ["mnist", "digits"]
    assert not result.tiles


def test_it_does_not_call_an_unfinished_run_done():
    assert "so far, unfinished" in said(run(finished=False))[1]


def test_of_words_it_is_about_perplexity_and_writes_numbers_out():
    ends = {"fedavg": 1145.4, "heterofl": 140.2}
    finals = {name: Evaluation(3, {"perplexity": end}, {}) for name, end in ends.items()}
    heading, text, _ = said(*(run(name, method=name, final=end, best=None) for name, end in finals.items()))
    assert heading == "HeteroFL reaches 140.2 perplexity"
    assert "1,005 ahead of FedAvg" in text
