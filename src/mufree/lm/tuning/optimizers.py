"""The chosen optimizer, built: mlx-lm's five as mlx-lm builds them, all others by the plan."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import mlx.nn as nn
import mlx.optimizers as optim
from mlx_lm.tuner.utils import build_schedule

from ...build import build_optimizer
from ...errors import Reasons, refuse
from .choice import CLASSES, Choice
from .settings import FinetuneConfig


def build(
    choice: Choice, config: FinetuneConfig, model: nn.Module, scales: Mapping[str, Any] | None = None
) -> tuple[Any, tuple[str, ...]]:
    """The optimizer with its state started, and what building it has to say.

    A schedule-free one keeps the average ``x`` in the model, so that mlx-lm's trainer validates and saves it.

    Args:
        choice: What was decided.
        config: The run's settings.
        model: The model, with its trainable parameters unfrozen.
        scales: μP scales of the trainable parameters, or None for none.

    Raises:
        Refused: If the optimizer's class does not take its settings, or cannot train this model.
    """
    if choice.plan is None:
        if scales is not None:
            refuse("no_rule", "optimizer", f"{choice.name} is mlx-lm's, which takes no μP scales; give adamw_torch")
        optimizer = _as_in_mlx_lm(choice, config)
        said: tuple[str, ...] = ()
    else:
        holds = "x" if choice.schedule_free else "y"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # they are in the plan too, which is printed
            optimizer = build_optimizer(choice.plan, model, scales=scales, model_holds=holds)  # type: ignore[arg-type]
        plan = optimizer.plan
        said = (*plan.notes, *plan.warnings)
    optimizer.init(model.trainable_parameters())
    return optimizer, said


def _as_in_mlx_lm(choice: Choice, config: FinetuneConfig) -> optim.Optimizer:
    kind = getattr(optim, CLASSES[choice.name])
    where = f"optimizer_config.{choice.name}"
    known = [name for name in inspect.signature(kind).parameters if name != "learning_rate"]
    reasons = Reasons()
    for name in choice.settings:
        if name not in known:
            reasons.add_unknown(f"{where}.{name}", name, known, "setting")
    reasons.refuse_if_any()
    rate = build_schedule(config.lr_schedule) if config.lr_schedule else choice.rate
    try:
        return kind(learning_rate=rate, **choice.settings)
    except (TypeError, ValueError, IndexError) as error:
        refuse("out_of_range", where, f"MLX's {kind.__name__} refuses it: {error}")
