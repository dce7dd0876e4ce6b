"""From a model that holds ``y`` to one that holds ``x``, and back, in the middle of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from .form import Form, Holds, Leaf, working_dtype
from .tree import place


def convert(form: Form, holds: Holds, model: Any, found: Mapping[str, tuple[mx.array, Leaf]]) -> None:
    """Put the other sequence into ``model`` and into the float32 copies of its state, in place.

    Args:
        form: The form it has now.
        holds: The sequence it shall hold.
        model: The model.
        found: Path → parameter and state of everything the optimizer trains.
    """
    values = {}
    for path, (parameter, leaf) in found.items():
        copied = form.holds in leaf
        held = leaf.pop(form.holds, parameter).astype(working_dtype(parameter.dtype))
        z = leaf["z"].astype(held.dtype)
        other = form.average(held, z) if holds == "x" else form.gradient_point(held, z)
        values[path] = other.astype(parameter.dtype)
        if copied:
            leaf[holds] = other
    place(model, values)
