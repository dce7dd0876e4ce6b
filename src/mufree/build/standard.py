"""A plan becomes an optimizer: the one place where every planned field is handed to a class."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.nn as nn
import mlx.optimizers as optim

from mufree.errors import Reasons, refuse
from mufree.plan import OptimizerPlan
from mufree.schedule_free.form import Holds
from mufree.schedule_free.rule import Multipliers
from mufree.sizes import check_sizes

from .checks import all_leaves, check_model, check_scales, trainable_leaves
from .grouped import Grouped, Member
from .guarded import guarded
from .masks import decaying
from .precision import bfloat16_warning
from .rates import build_lr_schedule
from .rules import Rate, schedule_free_rule, stock_rule
from .statistics import running_statistics_note


@dataclass(frozen=True, slots=True)
class FactorMap(Mapping[str, Multipliers]):
    """Multipliers by path, in the form that the schedule-free optimizers take as scales."""

    by_path: Mapping[str, Multipliers]
    family: str
    dims: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, path: str) -> Multipliers:
        return self.by_path[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_path)

    def __len__(self) -> int:
        return len(self.by_path)


def build_optimizer(
    plan: OptimizerPlan,
    model: nn.Module | None = None,
    *,
    scales: Mapping[str, Any] | None = None,
    model_holds: Holds = "y",
) -> optim.Optimizer:
    """Build what was planned. The result clips by itself, and carries the plan as ``.plan``.

    Args:
        plan: What :func:`~mufree.plan.plan_optimizer` decided.
        model: The model to be trained; needed where ``plan.needs_model``, and checked whenever given.
        scales: What ``mup_scales`` or ``parametrize`` returned.
        model_holds: For a schedule-free optimizer, which sequence the model will hold, ``"y"`` or ``"x"``.

    Returns:
        An ``mlx.optimizers.Optimizer``: an instance of the class that the name means, or a
        :class:`~mufree.build.grouped.Grouped` of them where parameters differ in rate, eps or decay.

    Raises:
        ShapeMismatch: The scales are those of a model of other widths.
        Refused: The plan needs the model, or plan, model and scales do not go together.

    Warns:
        UserWarning: Parameters of the model are bfloat16 and the optimizer keeps no float32 copy of them. The warning
            is also among ``optimizer.plan.warnings``.

    Example:
        >>> from mufree import build_optimizer, plan_optimizer
        >>> build_optimizer(plan_optimizer(optimizer="adamw_torch", lr=1e-3)).bias_correction
        True
    """
    if not isinstance(plan, OptimizerPlan):
        refuse("not_a_plan", "plan", f"{type(plan).__name__}; give what plan_optimizer returned")
    reasons = Reasons()
    if plan.needs_model and model is None:
        reasons.add("needs_model", "model", f"None, but decay_mask={plan.decay_mask!r} needs it; give the model")
    if model_holds != "y" and not plan.family.schedule_free:
        message = f"{model_holds!r}, but {plan.optimizer_name} keeps no average; leave it out"
        reasons.add("no_average", "model_holds", message)
    if scales is not None:
        check_scales(reasons, plan, scales)
    leaves = {} if model is None else trainable_leaves(reasons, model)
    if leaves:
        check_model(reasons, plan, model, leaves, scales)
    reasons.refuse_if_any()
    if scales is not None:
        paths = set(all_leaves(model)) if isinstance(model, nn.Module) else None
        check_sizes(scales, {path: leaf.shape for path, leaf in leaves.items()}, model_paths=paths)
    costs = bfloat16_warning(plan, leaves)
    if costs:
        warnings.warn(costs, UserWarning, stacklevel=2)
        plan = replace(plan, warnings=(*plan.warnings, costs))
    statistics = running_statistics_note(plan, model)
    if statistics:
        plan = replace(plan, notes=(*plan.notes, statistics))
    rate = build_lr_schedule(plan)
    if plan.family.schedule_free:
        optimizer = _schedule_free(plan, model, scales, rate, model_holds)
    else:
        optimizer = _stock(plan, model, scales, rate)
    optimizer.plan = plan
    return optimizer


def _stock(plan: OptimizerPlan, model: Any, scales: Mapping[str, Any] | None, rate: Rate) -> optim.Optimizer:
    last = plan.total_updates if plan.past_end == "refuse" else None
    if scales is None and not plan.needs_model:
        rule = stock_rule(plan, rate)
        return rule.make(guarded(rule.kind, max_grad_norm=plan.max_grad_norm, last_update=last))
    groups: dict[Multipliers, set[str]] = {}
    for path, factors in _factors(plan, model, scales).items():
        groups.setdefault(factors, set()).add(path)
    members = [
        Member(
            optimizer=stock_rule(plan, 0.0, eps_factor=factors.eps, decay_factor=factors.weight_decay).make(),
            paths=frozenset(paths),
            rate_factor=factors.lr,
        )
        for factors, paths in groups.items()
    ]
    return guarded(Grouped, max_grad_norm=plan.max_grad_norm, last_update=last)(members, rate)


def _schedule_free(
    plan: OptimizerPlan, model: Any, scales: Mapping[str, Any] | None, rate: Rate, holds: Holds
) -> optim.Optimizer:
    if plan.needs_model:
        scales = FactorMap(_factors(plan, model, scales), plan.family.mup or "", getattr(scales, "dims", {}))
    rule = schedule_free_rule(plan, rate, scales, holds)
    return rule.make(guarded(rule.kind, max_grad_norm=plan.max_grad_norm, last_update=None))


def _factors(plan: OptimizerPlan, model: Any, scales: Mapping[str, Any] | None) -> dict[str, Multipliers]:
    """What multiplies each parameter's rate, eps and decay; those that a plan does not have stay 1."""
    leaves: dict[str, Any] = dict.fromkeys(scales or ()) if model is None else all_leaves(model)
    if scales is not None:
        leaves = {path: leaf for path, leaf in leaves.items() if path in scales}
    decays = decaying(plan, model, leaves)
    found: dict[str, Multipliers] = {}
    for path in leaves:
        scale = Multipliers() if scales is None else scales[path]
        found[path] = Multipliers(
            lr=float(scale.lr),
            eps=float(scale.eps) if plan.eps is not None else 1.0,
            weight_decay=float(scale.weight_decay) if path in decays else 0.0,
        )
    return found
