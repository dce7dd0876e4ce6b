"""Norm gains that carry a multiplier which the model's own code cannot: the head's 1/m, or attention's √(d₀/d)."""

from __future__ import annotations

import math

import mlx.core as mx

from ..errors import Reasons
from .walk import Leaf, modules

_FRESH = (1.0, 2.0)


def gain_offset(leaf: Leaf) -> float:
    """What a norm adds to its gain before it multiplies: 0 for most, 1 for Gemma's; found by calling it.

    y = (offset + gain)·x̂ + bias, and x̂ changes its sign with x. A gain that its module's own code multiplies with, as
    in a model that calls ``mx.fast.rms_norm``, and one in a module that cannot be called so, has none.
    """
    if leaf.name == "bias" or "." in leaf.name or sum(1 for _ in modules(leaf.owner)) > 1:
        return 0.0
    gain = leaf.value
    probe = mx.arange(1, gain.size + 1).astype(mx.float32)[None]
    try:
        setattr(leaf.owner, leaf.name, mx.zeros(gain.shape))
        zero, negative = (leaf.owner(sign * probe)[0, -1].item() for sign in (1, -1))
        setattr(leaf.owner, leaf.name, mx.ones(gain.shape))
        one = leaf.owner(probe)[0, -1].item()
        offset = (zero - negative) / 2 / (one - zero)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError, ZeroDivisionError):
        return 0.0
    finally:
        setattr(leaf.owner, leaf.name, gain)
    return float(round(offset, 3)) if math.isfinite(offset) else 0.0


def carried(leaf: Leaf, share: float, problems: Reasons) -> mx.array:
    """The gain that makes the norm's output ``share`` times what it was, for y = g·x̂ and for y = (1 + g)·x̂ alike."""
    start = leaf.value
    if not is_constant(start):
        problems.add("not_fresh", leaf.path, "is a gain that has moved from its start; init='keep' keeps weights")
        return start
    offset = gain_offset(leaf)
    effective = float(start[:1].astype(mx.float32).item()) + offset
    if leaf.name != "bias" and effective not in _FRESH:
        problems.add("not_fresh", leaf.path, f"starts at {effective:g}, not 1 or 2: parametrized before?")
    return start if share == 1.0 else (start + offset) * share - offset


def is_constant(value: mx.array) -> bool:
    """Whether all entries are equal."""
    return bool((value == value.reshape(-1)[0]).all().item())
