"""A method of one's own, made of parts that exist: FedRolex's window, trained with FedProx's term.

nestling run heterofl-digits method=own_method:rolling_prox              # in this folder
python own_method.py
"""

import nestling
from nestling.experiment import find
from nestling.methods.fedrolex import RollingPlan
from nestling.methods.parts.proximal import Proximal
from nestling.methods.parts.static_norms import StaticNorms


def rolling_prox(step: int = 1, mu: float = 0.01) -> nestling.Method:
    """Return the method; a client counts by its samples."""
    return nestling.Method("rolling-prox", RollingPlan(step), StaticNorms(), Proximal(mu), weighting="samples")


if __name__ == "__main__":
    result = nestling.run(find("heterofl-digits").with_settings(["rounds=5"]), method=rolling_prox())
    print(f"{result.summary['final']['global_accuracy']:.1%} after five rounds")
