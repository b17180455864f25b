"""`HubModel`: a trained sub-model for the Hugging Face Hub, through huggingface_hub's mixin.

Its config.json holds the name and options of a model of `nestling.nets` and the plan; its weights are safetensors. Only
models by name are supported: a config from the Hub must not name modules to import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nestling.axes import trace
from nestling.cut import Plan, submodel
from nestling.errors import ExportError, nearest
from nestling.imported import need
from nestling.nets import MODELS, build

_Mixin: Any = need("huggingface_hub", "hub", "models for the Hub need", ExportError).PyTorchModelHubMixin


class HubModel(nn.Module, _Mixin, library_name="nestling", tags=["federated-learning", "nestling"]):  # type: ignore[misc, call-arg]
    """A sub-model of a model of `nestling.nets`, with ``save_pretrained``, ``from_pretrained`` and ``push_to_hub``.

    Parameters
    ----------
    model, options
        The name of the whole model and all its options.
    shape, dtype
        The shape of an input of two samples, and its type, such as ``float32``.
    plan
        The plan of the sub-model as JSON.

    Examples
    --------
    >>> import tempfile
    >>> net = HubModel("mlp", {"size": 8, "widths": [4, 4]}, [2, 1, 8, 8], "float32", Plan().to_json())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     net.save_pretrained(folder)  # and HubModel.from_pretrained(folder), net.push_to_hub("me/net")
    >>> net(torch.ones(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, model: str, options: Mapping[str, Any], shape: Sequence[int], dtype: str, plan: str) -> None:
        super().__init__()
        if model not in MODELS:
            raise ExportError(f"there is no model {model!r} to load from the Hub{nearest(model, MODELS)}")
        types = {"float32": torch.float32, "int64": torch.int64}
        if dtype not in types:
            raise ExportError(f"inputs of type {dtype!r} are not known{nearest(dtype, types)}")
        whole = build(model, **options)
        self.small = submodel(whole, trace(whole, torch.zeros(*shape, dtype=types[dtype])), Plan.from_json(plan))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the sub-model."""
        return self.small(*args, **kwargs)
