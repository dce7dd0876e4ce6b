"""mlx-lm's own model classes, freshly initialised, and the base shapes of a config."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlx_lm.utils import _get_classes

from ..errors import refuse
from ..mup import BaseShapes, make_base_shapes
from ..random_state import random_state_kept
from .configs import at_width

if TYPE_CHECKING:
    import mlx.nn as nn


def argument_names(model_type: str) -> set[str]:
    """Every config field that mlx-lm's model of this type reads.

    Raises:
        Refused: If mlx-lm has no such model.
    """
    return set(inspect.signature(_classes({"model_type": model_type})[1]).parameters)


def build(config: Mapping[str, Any]) -> nn.Module:
    """A fresh model of mlx-lm's own class, initialised as MLX does from the current random state.

    Nothing is computed yet: the arrays are lazy, so that a base or delta model takes no memory.

    Args:
        config: A model config, as in a model folder's ``config.json``.

    Raises:
        Refused: If mlx-lm has no such model, or a field is missing.
    """
    model_class, args_class = _classes(config)
    try:
        return model_class(args_class.from_dict(dict(config)))
    except TypeError as error:
        refuse("missing", "config", f"{config.get('model_type')} cannot be built from it: {error}")


def base_shapes(config: Mapping[str, Any], base_width: int) -> BaseShapes:
    """The base shapes of a model: its shapes at ``base_width``, and which of their axes grow.

    Args:
        config: The config of the model to train, at any width.
        base_width: The ``hidden_size`` at which the learning rate was tuned.

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
