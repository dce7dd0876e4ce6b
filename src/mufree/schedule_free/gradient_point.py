"""Gradients at ``y`` for a model that holds ``x``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import mlx.core as mx

from ..errors import refuse
from .form import Form, working_dtype
from .tree import place, replace_leaves, walk


def at_y(form: Form, state: dict[str, Any], loss: Callable[..., Any], model: Any) -> Callable[..., Any]:
    """``loss`` with ``y`` in place of the ``x`` that its first argument, or ``model``, holds."""
    if form.holds != "x":
        refuse("holds_y", "model_holds", "'y': the model holds y already; at_y is for model_holds='x'")

    @wraps(loss)
    def loss_at_y(*args: Any, **kwargs: Any) -> Any:
        target = model if model is not None else next((a for a in args if hasattr(a, "trainable_parameters")), None)
        if target is None:
            if not (args and isinstance(args[0], dict | list | tuple)):
                refuse("no_model", "at_y", "the loss takes no model; give it: at_y(loss, model)")
            return loss(replace_leaves(args[0], _points(form, state, args[0])), *args[1:], **kwargs)
        if not target.training:
            return loss(*args, **kwargs)
        parameters = target.trainable_parameters()
        points = _points(form, state, parameters)
        x: dict[str, mx.array] = dict(walk(parameters))
        place(target, points)
        try:
            return loss(*args, **kwargs)
        finally:
            place(target, x)

    return loss_at_y


def _points(form: Form, state: dict[str, Any], parameters: Any) -> dict[str, mx.array]:
    """Path → an array with the value of ``y`` whose derivative with respect to ``x`` is the identity."""
    points = {}
    for path, x, leaf in walk(parameters, state):
        if isinstance(leaf, dict) and "z" in leaf:
            held = leaf.get("x", x).astype(working_dtype(x.dtype))
            y = form.gradient_point(held, leaf["z"].astype(held.dtype)).astype(x.dtype)
            points[path] = mx.stop_gradient(y) + (x - mx.stop_gradient(x))
    return points
