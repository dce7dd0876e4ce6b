"""The attention's query projections, and what starting them at zero means for a fused or a normalised one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from ..errors import Reasons
from .attention import HEADS, QUERIES, QUERY_NORMS
from .gains import gain_offset
from .walk import Leaf, modules

_FUSED = ("qkv_proj", "wqkv", "c_attn", "qkv")
Zeroing = Callable[[mx.array], mx.array]


def zeroed_queries(model: Any, found: Sequence[Leaf], problems: Reasons) -> dict[str, Zeroing]:
    """What sets the queries of an attention to zero: all of a projection, or the query's rows of a fused one.

    Where a norm follows, its gain starts at zero instead: behind a norm the first update would give a zero projection
    its full size at once.

    Args:
        model: The model.
        found: Its parameters.
        problems: Collects a model without queries, and fused projections whose rows are not known.

    Returns:
        For each such parameter, a function of its value.
    """
    parents = dict(modules(model))
    zeros: dict[str, Zeroing] = {}
    for leaf in found:
        *above, layer, name = ["", *leaf.path.split(".")]
        attention = parents.get(".".join(above).lstrip("."))
        if name not in ("weight", "bias"):
            continue
        if layer.lower() in QUERY_NORMS:
            zeros[leaf.path] = partial(_filled, with_=-gain_offset(leaf))
        elif layer.lower() in QUERIES and not any(norm in (attention or ()) for norm in QUERY_NORMS):
            zeros[leaf.path] = mx.zeros_like
        elif layer.lower() in _FUSED:
            rows = _query_rows(attention, leaf.owner)
            if rows is None:
                problems.add("zero_query", leaf.path, "is fused, and which of its rows are queries is not known")
                continue
            zeros[leaf.path] = partial(_first_rows_zero, rows=rows)
    if not zeros and not problems.found:
        problems.add("zero_query", "zero_query", f"no layer is called {', '.join(QUERIES + _FUSED)}")
    return zeros


def _filled(value: mx.array, *, with_: float) -> mx.array:
    return mx.full(value.shape, with_, dtype=value.dtype)


def _first_rows_zero(value: mx.array, *, rows: int) -> mx.array:
    return mx.concatenate([mx.zeros_like(value[:rows]), value[rows:]])


def _query_rows(attention: Any, fused: Any) -> int | None:
    """How many rows of a fused projection, queries first, are queries."""
    rows, columns = fused["weight"].shape
    size = getattr(attention, "head_dim", None)
    for name in HEADS:
        heads = getattr(attention, name, None)
        if isinstance(heads, int) and isinstance(size, int) and heads * size < rows:
            return heads * size
    return rows // 3 if rows == 3 * columns else None
