"""Gradients at ``y`` for a model that holds ``x``.

The model holds ``y`` for the time of the loss. Restoring ``x`` right after the loss is not enough: a checkpointed layer
is run again in the backward pass and puts what it was given, ``y``, into the model once more. So the weights pass
through one custom function whose derivative is the identity, and whose backward pass, the last of all that concern the
weights, restores ``x`` too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..errors import refuse
from .form import Form, working_dtype
from .tree import place, replace_leaves, walk

Arrays = dict[str, mx.array]


def at_y(
    form: Form, state: dict[str, Any], loss: Callable[..., Any], model: Any, asked: Callable[[], None]
) -> Callable[..., Any]:
    """``loss`` with ``y`` in place of the ``x`` that its first module or tree argument, or ``model``, holds.

    ``asked`` is called whenever it is.
    """
    if form.holds != "x":
        refuse("holds_y", "model_holds", "'y': the model holds y already; at_y is for model_holds='x'")

    @wraps(loss)
    def loss_at_y(*args: Any, **kwargs: Any) -> Any:
        target = model if model is not None else _model(args)
        if target is None:
            if not (args and isinstance(args[0], dict | list | tuple)):
                refuse("no_model", "at_y", "the loss takes no model; give it: at_y(loss, model)")
            asked()
            x, y = gradient_points(form, state, args[0])
            return loss(replace_leaves(args[0], _shifted(x, y, lambda: None)), *args[1:], **kwargs)
        if not target.training:
            return loss(*args, **kwargs)
        asked()
        x, y = gradient_points(form, state, target.trainable_parameters())

        def restore() -> None:
            place(target, x)

        place(target, _shifted(x, y, restore))
        try:
            return loss(*args, **kwargs)
        finally:
            restore()

    return loss_at_y


class AtY:
    """Whether an optimizer whose model holds ``x`` was ever asked for ``y``, where its gradients have to be taken."""

    _y_asked = False
    _layout: Any

    def _ask_y(self) -> None:
        self._y_asked = True

    def _warn_at_x(self, model: Any) -> None:
        """Warn, once, at an update of a module if it never was. Who keeps bare trees takes gradients himself."""
        if self._y_asked or self._layout.form.holds != "x" or not hasattr(model, "trainable_parameters"):
            return
        self._y_asked = True
        warnings.warn(
            "the model holds x, and neither at_y's loss (under model.train()) nor gradient_point was ever called: "
            "gradients taken at x train by another algorithm. Take them through optimizer.at_y(loss), as in "
            "nn.value_and_grad(model, optimizer.at_y(loss)), or with model_holds='y'",
            UserWarning,
            stacklevel=4,
        )


def _model(arguments: tuple[Any, ...]) -> Any:
    """The first module that has something to train, or else the first: a frozen reference may come before it."""
    modules = [argument for argument in arguments if hasattr(argument, "trainable_parameters")]
    return next(
        (module for module in modules if tree_flatten(module.trainable_parameters())), next(iter(modules), None)
    )


def gradient_points(form: Form, state: dict[str, Any], parameters: Any) -> tuple[Arrays, Arrays]:
    """``x`` and ``y`` by path, of all parameters that have state; ``y`` in the parameter's dtype."""
    x, y = {}, {}
    for path, parameter, leaf in walk(parameters, state):
        if isinstance(leaf, dict) and "z" in leaf:
            held = leaf.get(form.holds, parameter).astype(working_dtype(parameter.dtype))
            x[path] = parameter
            y[path] = mx.stop_gradient(form.gradient_point(held, leaf["z"].astype(held.dtype)).astype(parameter.dtype))
    return x, y


def _shifted(x: Arrays, y: Arrays, after_backward: Callable[[], None]) -> Arrays:
    """The values of ``y``, whose derivative with respect to ``x`` is the identity."""
    if not x:
        return {}

    @mx.custom_function
    def shift(*arrays: mx.array) -> tuple[mx.array, ...]:
        return tuple(y.values())

    @shift.vjp
    def shift_vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
        after_backward()
        return cotangents

    shifted: Any = shift(*x.values())
    return dict(zip(x, shifted, strict=True))
