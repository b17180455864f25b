"""Small experiments on words: made-up sentences, seconds each."""

from nestling.data import load_text
from nestling.nets import build
from nestling.settings import Data, Evaluate, Experiment, FleetSettings, LocalTraining, Model

MLM = "transformer-mlm"
NWP = "transformer-nwp"
OPTIONS = {"width": 16, "hidden": 16, "depth": 1, "heads": 2}


def small(**changes):
    """A thousand clients of three levels, six of them a round, who predict next words."""
    settings = {
        "method": "heterofl",
        "rounds": 2,
        "model": Model(name=NWP, options=OPTIONS),
        "data": Data(name="words", partition="user", vocabulary_size=200, sequence_length=8),
        "fleet": FleetSettings(clients=1000, per_round=6, levels="a-b-d"),
        "local": LocalTraining(lr=0.1, epochs=1, batch_size=4),
        "evaluate": Evaluate(every=2, samples=40),
    }
    return Experiment(**{**settings, **changes})


def masked(**changes):
    """The same with masked words."""
    data = Data(name="words", partition="user", vocabulary_size=200, sequence_length=8, task="masked-word")
    return small(**{"data": data, "model": Model(name=MLM, options=OPTIONS), **changes})


def double(name=NWP, task="next-word", **options):
    """A net in double precision for these words."""
    text = load_text("words", task=task, vocabulary=200, length=8)
    return build(name, vocabulary=200, special=text.special, **{**OPTIONS, **options}).double()
