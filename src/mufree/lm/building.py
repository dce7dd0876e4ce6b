"""mlx-lm's own model classes, freshly initialised, and the base shapes of a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_type_hints

import mlx.core as mx
from mlx_lm.utils import _get_classes

from ..errors import refuse
from ..mup import BaseShapes, make_base_shapes
from ..random_state import random_state_kept
from .configs import at_width

if TYPE_CHECKING:
    import mlx.nn as nn


def argument_types(model_type: str) -> dict[str, Any]:
    """The type of every config field that mlx-lm's model of this type reads, by name.

    Raises:
        Refused: If mlx-lm has no such model.
    """
    return get_type_hints(_classes({"model_type": model_type})[1])


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as mlx-lm's model reads it, with the defaults of what it does not say; one that cannot be read, as is.

    Raises:
        Refused: If mlx-lm has no such model.
    """
    arguments = _classes(config)[1]
    try:
        return asdict(arguments.from_dict(dict(config)))
    except (TypeError, ValueError, KeyError, AttributeError):  # a field is missing; building says which
        return dict(config)


def build(config: Mapping[str, Any]) -> nn.Module:
    """A fresh model of mlx-lm's own class, initialised as MLX does from the current random state.

    Nothing is computed yet: the arrays are lazy, so that a base or delta model takes no memory. It is called once, as
    lazily, so that a field that no call could use is refused here.

    Args:
        config: A model config, as in a model folder's ``config.json``.

    Returns:
        The model, in float32, with the parameters' names that mlx-lm gives them.

    Raises:
        Refused: If mlx-lm has no such model, or a field is missing or of no use to it.
    """
    model_class, args_class = _classes(config)
    try:
        model = model_class(args_class.from_dict(dict(config)))
        model(mx.zeros((1, 2), dtype=mx.int32))
    except Exception as error:  # a model class raises what it likes for a field that it cannot use
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        refuse("unusable", "model", f"{config.get('model_type')} cannot be built from its config, {told}")
    return model


def base_shapes(config: Mapping[str, Any], base_width: int) -> BaseShapes:
    """The base shapes of a model: its shapes at ``base_width``, and which of their axes grow.

    Args:
        config: The config of the model to train, at any width.
        base_width: The ``hidden_size`` at which the learning rate was tuned.

    Returns:
        Base shapes for :func:`~mufree.mup_scales` and :func:`~mufree.parametrize`.

    Raises:
        Refused: If the config has no model at ``base_width`` (see :func:`at_width`).
    """
    base = at_width(config, base_width)
    with random_state_kept():
        return make_base_shapes(build(base), build(at_width(base, 2 * base_width)))


def _classes(config: Mapping[str, Any]) -> tuple[Any, Any]:
    try:
        return _get_classes(dict(config))
    except (KeyError, ValueError):
        refuse("unknown", "model_type", f"{config.get('model_type')!r} is not a model type of the installed mlx-lm")
