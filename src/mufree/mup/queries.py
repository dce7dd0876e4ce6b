"""The attention's query projections, and what starting them at zero means for a fused one."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import mlx.core as mx

from ..errors import Reasons
from .attention import QUERIES
from .walk import Leaf, modules

_FUSED = ("qkv_proj", "wqkv", "c_attn", "qkv")


def zeroed_queries(model: Any, found: Sequence[Leaf], problems: Reasons) -> dict[str, mx.array]:
    """The new value of every query projection: zero, or zero in the query's rows of a fused one.

    Args:
        model: The model.
        found: Its parameters.
        problems: Collects a model without queries, and fused projections whose rows are not known.
    """
    parents = dict(modules(model))
    zeros = {}
    for leaf in found:
        *above, layer, name = leaf.path.split(".") if leaf.path.count(".") else ("", leaf.path)
        if name not in ("weight", "bias"):
            continue
        if layer.lower() in QUERIES:
            zeros[leaf.path] = mx.zeros_like(leaf.value)
        elif any(fnmatchcase(layer.lower(), pattern) for pattern in _FUSED):
            rows = _query_rows(parents.get(".".join(above)), leaf)
            if rows is None:
                problems.add("zero_query", leaf.path, "is fused, and which of its rows are queries is not known")
                continue
            kept = mx.arange(leaf.shape[0]) >= rows
            zeros[leaf.path] = leaf.value * kept.reshape(-1, *[1] * (len(leaf.shape) - 1)).astype(leaf.value.dtype)
    if not zeros and not problems.found:
        problems.add("zero_query", "zero_query", f"no layer is called {', '.join(QUERIES + _FUSED)}")
    return zeros


def _query_rows(attention: Any, leaf: Leaf) -> int | None:
    heads = getattr(attention, "n_heads", None) or getattr(attention, "n_head", None)
    if not isinstance(heads, int):
        heads = getattr(attention, "num_heads", None)
    size = getattr(attention, "head_dim", None)
    if isinstance(heads, int) and isinstance(size, int) and heads * size < leaf.shape[0]:
        return heads * size
    return leaf.shape[0] // 3 if len(leaf.shape) > 1 and leaf.shape[0] == 3 * leaf.shape[1] else None
