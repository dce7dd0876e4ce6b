"""Attention whose code divides by √d although its head size d grows: what has to carry the missing √(d₀/d).

μP wants q·k/d. Where a model hard-codes 1/√d, the query projection can start √(d₀/d) times smaller, with its rate; a
norm after it would undo that, so then the norm's gain carries it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Reasons
from .walk import Leaf, is_module, modules

QUERIES = ("q_proj", "query_proj", "wq", "q_b_proj", "query")
HEADS = ("n_heads", "num_heads", "n_head", "num_attention_heads")
QUERY_NORMS = ("q_norm", "query_norm", "q_layernorm", "query_layernorm")


@dataclass(frozen=True, slots=True)
class Carrier:
    """A parameter that carries a share of the attention's scale, and whether it is a norm's gain."""

    path: str
    share: float
    gain: bool


def head_size(attention: Any, rows: int) -> int | None:
    """The size of a head of an attention module whose query projection has that many rows."""
    size = getattr(attention, "head_dim", None)
    if isinstance(size, int):
        return size
    for name in HEADS:
        heads = getattr(attention, name, None)
        if isinstance(heads, int) and heads > 0 and rows % heads == 0:
            return rows // heads
    return None


def query_carriers(model: Any, found: Sequence[Leaf], base_head_dim: int, problems: Reasons) -> tuple[Carrier, ...]:
    """Every parameter that has to carry √(base head size / head size).

    Args:
        model: The model.
        found: Its parameters.
        base_head_dim: The head size of the base model.
        problems: Collects a model without attention, or one whose head size cannot be read.
    """
    by_path = {leaf.path: leaf for leaf in found}
    carriers = []
    for path, module in modules(model):
        query = next((name for name in QUERIES if is_module(module) and name in module), None)
        if query is None:
            continue
        prefix = f"{path}.{query}" if path else query
        weight = by_path.get(f"{prefix}.weight")
        size = head_size(module, weight.shape[0]) if weight is not None else None
        if weight is None or size is None:
            problems.add(
                "base_head_dim",
                prefix,
                "its head size cannot be read: its module has no whole number called head_dim, nor a number of heads "
                f"called {', '.join(HEADS)} that divides its rows; set one, or the scale in the model's own code",
            )
            continue
        share = math.sqrt(base_head_dim / size)
        norm = next((name for name in QUERY_NORMS if name in module), None)
        names = (f"{path}.{norm}" if path else norm,) if norm else (prefix,)
        carriers += [
            Carrier(leaf.path, share, norm is not None)
            for leaf in found
            if leaf.path.rpartition(".")[0] in names and leaf.name in ("weight", "bias")
        ]
    if not carriers and not problems.found:
        problems.add("base_head_dim", "base_head_dim", f"no layer is called {', '.join(QUERIES)}")
    return tuple(carriers)
