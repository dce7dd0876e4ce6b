"""Small models that the muP tests share."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama

VOCABULARY = 48


def llama_at(width: int, *, tied: bool = False, **changes: Any) -> nn.Module:
    """A llama of two layers whose heads keep 16 dimensions."""
    settings = {
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": 2,
        "intermediate_size": 2 * width,
        "num_attention_heads": width // 16,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": tied,
    }
    return llama.Model(llama.ModelArgs(**{**settings, **changes}))


def mlp_at(width: int) -> nn.Module:
    """Input, one hidden layer and a readout, with biases."""
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def flat(tree: Any) -> dict[str, mx.array]:
    """The arrays of a model or tree by path."""
    return dict(tree_flatten(tree.parameters() if isinstance(tree, nn.Module) else tree))


def identical(one: dict[str, mx.array], other: dict[str, mx.array]) -> bool:
    """Whether two flat trees hold the same bits."""
    return one.keys() == other.keys() and all(mx.array_equal(one[p], other[p]).item() for p in one)
