"""What a run needs of the machine's memory at the very least, worked out before anything takes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..errors import Reasons
from ..lm.building import build
from .config import PretrainConfig

_PARAMETER = 16
"""Bytes a parameter: y, z, v and the gradient, float32."""

_LOGIT = 8
"""Bytes a logit of a micro-batch: itself and its gradient, float32."""


def check_memory(config: PretrainConfig, model_config: Mapping[str, Any], ranks: int = 1) -> None:
    """Refuse sizes that cannot fit, before they are built; smaller ones may still not.

    Args:
        config: The settings.
        model_config: The model's config.
        ranks: Processes that share a micro-batch.

    Raises:
        Refused: If the weights and their state, or a micro-batch's logits, are more than the memory there is.
    """
    there = _memory()
    model = _PARAMETER * parameters(model_config)
    logits = _LOGIT * config.batch_size // ranks * config.seq_length * model_config["vocab_size"]
    reasons = Reasons()
    for need, where, what, remedy in (
        (model, "width", "the weights and their optimizer state", "a smaller width or fewer layers"),
        (logits, "batch_size", "the logits of a micro-batch", "a smaller batch_size, and accumulation for the rest"),
    ):
        if need > there:
            message = f"{what} take {need / 1e9:,.1f} GB, the machine has {there / 1e9:,.1f}; give {remedy}"
            reasons.add("too_large", where, message)
    reasons.refuse_if_any()


def parameters(model_config: Mapping[str, Any]) -> int:
    """Parameters of the model of a config, from models of one and two blocks that are never computed."""
    shallow = {name: value for name, value in model_config.items() if name != "layer_types"}
    one, two = (_size(build({**shallow, "num_hidden_layers": layers})) for layers in (1, 2))
    return one + (model_config["num_hidden_layers"] - 1) * (two - one)


def _size(model: Any) -> int:
    return sum(array.size for _, array in tree_flatten(model.parameters()))


def _memory() -> int:
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    device = mx.device_info().get("memory_size", 0) if mx.default_device() != mx.Device(mx.cpu) else 0
    return max(host, int(device))
