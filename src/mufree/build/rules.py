"""Which class and which arguments each form of a plan is, with nothing left to a default of MLX's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim

from mufree.plan import OptimizerPlan

from . import forms

Rate = float | Callable[[mx.array], mx.array]
Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A class with its arguments, not yet constructed.

    Args:
        kind: The optimizer class.
        arguments: Its keyword arguments.
        coupled: λ of an L2 form, set on the object.
    """

    kind: type[optim.Optimizer]
    arguments: Arguments
    coupled: float = 0.0

    def make(self, kind: type[optim.Optimizer] | None = None) -> optim.Optimizer:
        """Construct it, as ``kind`` if a subclass is to be used."""
        optimizer = (kind or self.kind)(**self.arguments)
        if self.coupled:
            optimizer.coupled_weight_decay = self.coupled
        return optimizer


COUPLED: Mapping[str, type[optim.Optimizer]] = {
    "adam": forms.CoupledAdam,
    "adagrad": forms.CoupledAdagrad,
    "adamax": forms.CoupledAdamax,
    "rmsprop": forms.CoupledRMSprop,
    "adadelta": forms.CoupledAdaDelta,
}
PLAIN: Mapping[str, type[optim.Optimizer]] = {
    "adamw": optim.AdamW,
    "adamw_anyprecision": optim.AdamW,
    "adamw_hf": forms.TransformersAdamW,
    "adam": optim.Adam,
    "sgd": optim.SGD,
    "lion": optim.Lion,
    "adafactor": optim.Adafactor,
    "adagrad": optim.Adagrad,
    "adamax": forms.TorchAdamax,
    "rmsprop": optim.RMSprop,
    "adadelta": optim.AdaDelta,
    "muon": forms.TorchMuon,
}
FIXED: Mapping[str, Arguments] = {
    "adamw": {"bias_correction": True},
    "adamw_anyprecision": {"bias_correction": True},
    "adam": {"bias_correction": True},
    "sgd": {"dampening": 0.0},
    "adafactor": {"relative_step": False, "scale_parameter": False, "warmup_init": False},
}
SCHEDULE_FREE: Mapping[str, str] = {
    "schedule_free_adamw": "AdamWScheduleFree",
    "schedule_free_radam": "RAdamScheduleFree",
    "schedule_free_sgd": "SGDScheduleFree",
}


def stock_rule(plan: OptimizerPlan, rate: Rate, *, eps_factor: float = 1.0, decay_factor: float = 1.0) -> Rule:
    """The rule of a plan whose optimizer MLX has, for parameters with these factors on eps and decay."""
    decay = plan.weight_decay * decay_factor
    arguments = {"learning_rate": rate, **_common(plan, eps_factor), **FIXED.get(plan.form, {})}
    if plan.family.decay != "none":
        return Rule(kind=PLAIN[plan.form], arguments={**arguments, "weight_decay": decay})
    if plan.coupled_weight_decay and decay:
        return Rule(kind=COUPLED[plan.form], arguments=arguments, coupled=decay)
    return Rule(kind=PLAIN[plan.form], arguments=arguments)


def schedule_free_rule(plan: OptimizerPlan, rate: Rate, scales: Mapping[str, Any] | None, holds: str = "y") -> Rule:
    """The rule of a plan whose optimizer is one of ours."""
    kind = getattr(importlib.import_module("mufree.schedule_free"), SCHEDULE_FREE[plan.form])
    arguments = {"learning_rate": rate, **_common(plan, 1.0), "weight_decay": plan.weight_decay}
    arguments |= {"scales": scales, "model_holds": holds}
    if plan.form != "schedule_free_radam":
        arguments["warmup_steps"] = plan.warmup_updates
    return Rule(kind=kind, arguments=arguments)


def _common(plan: OptimizerPlan, eps_factor: float) -> Arguments:
    found: Arguments = dict(plan.options)
    if plan.betas is not None:
        found["betas"] = list(plan.betas)
    if plan.eps is not None:
        found["eps"] = plan.eps * eps_factor
    if plan.momentum is not None:
        found["momentum"] = plan.momentum
    return found
