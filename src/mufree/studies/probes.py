"""Looking into a model's forward pass: the outputs of its blocks, its attention logits, its own output.

Nothing of the model changes: for the time of a call its modules get a subclass that also keeps what they return, and
MLX's fused attention is watched for its queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from ..mup.walk import modules

OUTPUT = "output"
ATTENTION = "attention logits"
_ABSENT = -1e4
"""What an additive mask adds, at most, where there is no attention."""


def blocks(model: Any) -> list[str]:
    """Paths of a model's blocks: the modules of its outermost lists, or else its own children."""
    paths = [path for path, module in modules(model) if path and isinstance(module, dict)]
    listed = [path for path in paths if _ends_a_list(path)]
    found = listed or [path for path in paths if "." not in path]
    return sorted(found, key=lambda path: [(part.isdigit(), part.zfill(8)) for part in path.split(".")])


def activations(model: Any, call: Callable[[], Any]) -> dict[str, mx.array]:
    """What the blocks, the attention and the model itself gave during a call.

    Args:
        model: The model; ``call`` has to call it.
        call: Runs a forward pass, not compiled.

    Returns:
        Arrays by name: a block's path; ``PATH: attention logits`` (scaled scores of the pairs that attend); and
        ``output``. A block that is called more than once gives its last.
    """
    found: dict[str, mx.array] = {}
    stack: list[str] = []
    named = dict(modules(model))
    with _watched({**{path: named[path] for path in blocks(model)}, OUTPUT: model}, found, stack):
        with _watched_attention(found, stack):
            mx.eval(call())
        mx.eval(found)
    return found


def _ends_a_list(path: str) -> bool:
    *before, last = path.split(".")
    return last.isdigit() and not any(part.isdigit() for part in before)


@contextmanager
def _watched(watched: Mapping[str, Any], found: dict[str, mx.array], stack: list[str]) -> Iterator[None]:
    before = [(module, type(module)) for module in watched.values()]
    try:
        for path, module in watched.items():
            object.__setattr__(module, "__class__", _watching(type(module), path, found, stack))
        yield
    finally:
        for module, kind in before:
            object.__setattr__(module, "__class__", kind)


def _watching(kind: type, path: str, found: dict[str, mx.array], stack: list[str]) -> type:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        stack.append(path)
        try:
            result = kind.__call__(self, *args, **kwargs)
        finally:
            stack.pop()
        first = result[0] if isinstance(result, tuple | list) else result
        if isinstance(first, mx.array):
            found[path] = first
        return result

    return type(kind.__name__, (kind,), {"__call__": call})


@contextmanager
def _watched_attention(found: dict[str, mx.array], stack: Sequence[str]) -> Iterator[None]:
    fused = mx.fast.scaled_dot_product_attention

    def attention(q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any = None, **more: Any) -> Any:
        where = stack[-1] if stack else OUTPUT
        found[f"{where}: {ATTENTION}"] = _attending(q, k, scale, mask)
        return fused(q, k, v, scale=scale, mask=mask, **more)

    mx.fast.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        mx.fast.scaled_dot_product_attention = fused


def _attending(q: mx.array, k: mx.array, scale: float, mask: Any) -> mx.array:
    """Scaled scores, shape (rows, heads, queries, keys), 0 where the mask allows no attention."""
    k = mx.repeat(k, q.shape[1] // k.shape[1], axis=1)
    scores = (q * scale) @ k.swapaxes(-1, -2)
    if mask is None:
        return scores
    if isinstance(mask, str):
        return mx.tril(scores, k=scores.shape[-1] - scores.shape[-2])
    allowed = mask if mask.dtype == mx.bool_ else mask > _ABSENT
    return mx.where(allowed, scores, 0.0)
