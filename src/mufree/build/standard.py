"""A plan becomes an optimizer: the one place where every planned field is handed to a class."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from mufree.errors import refuse
from mufree.plan import OptimizerPlan

from .rates import build_lr_schedule

Rate = float | Callable[[mx.array], mx.array]


def build_optimizer(
    plan: OptimizerPlan, model: nn.Module | None = None, *, scales: Mapping[str, Any] | None = None
) -> optim.Optimizer:
    """Build what was planned.

    Args:
        plan: What :func:`~mufree.plan.plan_optimizer` decided.
        model: The model to be trained; needed where the plan says so, and with scales for a stock optimizer.
        scales: What :func:`~mufree.mup.mup_scales` or ``parametrize`` returned.

    Returns:
        An ``mlx.optimizers.Optimizer`` with the host's methods.

    Raises:
        Refused: The plan needs the model, or plan and scales do not go together.
    """
    if plan.needs_model and model is None:
        refuse("needs_model", "model", f"None, but decay_mask={plan.decay_mask!r} needs it; give the model")
    rate = build_lr_schedule(plan)
    if plan.family.schedule_free:
        return _schedule_free(plan, rate, scales)
    if plan.form != "adamw" or scales is not None or plan.max_grad_norm is not None or plan.needs_model:
        refuse("not_built", "optimizer", f"{plan.requested_optimizer!r} with these settings is not built yet")
    return optim.AdamW(rate, betas=plan.betas, eps=plan.eps, weight_decay=plan.weight_decay, bias_correction=True)


def _schedule_free(plan: OptimizerPlan, rate: Rate, scales: Mapping[str, Any] | None) -> optim.Optimizer:
    if plan.form != "schedule_free_adamw" or plan.max_grad_norm is not None:
        refuse("not_built", "optimizer", f"{plan.requested_optimizer!r} with these settings is not built yet")
    schedule_free = importlib.import_module("mufree.schedule_free")
    return schedule_free.AdamWScheduleFree(
        rate,
        betas=plan.betas,
        eps=plan.eps,
        weight_decay=plan.weight_decay,
        warmup_steps=plan.warmup_updates,
        scales=scales,
        **dict(plan.options),
    )
