"""A plan becomes an optimizer: the one place where every planned field is handed to a class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten

from mufree.errors import Reasons
from mufree.plan import OptimizerPlan

from .forms import check_hidden
from .grouped import Grouped, Member
from .guarded import guarded
from .masks import decay_mask
from .rates import build_lr_schedule
from .rules import Rate, schedule_free_rule, stock_rule


@dataclass(frozen=True, slots=True)
class Factors:
    """What multiplies a parameter's rate, eps and decay."""

    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0


@dataclass(frozen=True, slots=True)
class FactorMap(Mapping[str, Factors]):
    """Factors by path, in the form that the schedule-free optimizers take as scales."""

    by_path: Mapping[str, Factors]
    family: str

    def __getitem__(self, path: str) -> Factors:
        return self.by_path[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_path)

    def __len__(self) -> int:
        return len(self.by_path)


def build_optimizer(
    plan: OptimizerPlan, model: nn.Module | None = None, *, scales: Mapping[str, Any] | None = None
) -> optim.Optimizer:
    """Build what was planned. The result clips by itself, and carries the plan as ``.plan``.

    Args:
        plan: What :func:`~mufree.plan.plan_optimizer` decided.
        model: The model to be trained; needed where ``plan.needs_model``, and checked whenever given.
        scales: What ``mup_scales`` or ``parametrize`` returned.

    Returns:
        An ``mlx.optimizers.Optimizer``: an instance of the class that the name means, or a
        :class:`~mufree.build.grouped.Grouped` of them where parameters differ in rate, eps or decay.

    Raises:
        Refused: The plan needs the model, or plan, model and scales do not go together.

    Example:
        >>> from mufree import plan_optimizer
        >>> build_optimizer(plan_optimizer(optimizer="adamw_torch", lr=1e-3)).bias_correction
        True
    """
    reasons = Reasons()
    if plan.needs_model and model is None:
        reasons.add("needs_model", "model", f"None, but decay_mask={plan.decay_mask!r} needs it; give the model")
    if scales is not None:
        _check_scales(reasons, plan, scales)
    if model is not None:
        _check_model(reasons, plan, model, scales)
    reasons.refuse_if_any()
    rate = build_lr_schedule(plan)
    optimizer = (
        _schedule_free(plan, model, scales, rate) if plan.family.schedule_free else _stock(plan, model, scales, rate)
    )
    optimizer.plan = plan
    return optimizer


def _stock(plan: OptimizerPlan, model: Any, scales: Mapping[str, Any] | None, rate: Rate) -> optim.Optimizer:
    last = plan.total_updates if plan.past_end == "refuse" else None
    if scales is None and not plan.needs_model:
        rule = stock_rule(plan, rate)
        return rule.make(guarded(rule.kind, max_grad_norm=plan.max_grad_norm, last_update=last))
    groups: dict[Factors, set[str]] = {}
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


def _schedule_free(plan: OptimizerPlan, model: Any, scales: Mapping[str, Any] | None, rate: Rate) -> optim.Optimizer:
    if plan.needs_model:
        scales = FactorMap(_factors(plan, model, scales), plan.family.mup or "")
    rule = schedule_free_rule(plan, rate, scales)
    return rule.make(guarded(rule.kind, max_grad_norm=plan.max_grad_norm, last_update=None))


def _factors(plan: OptimizerPlan, model: Any, scales: Mapping[str, Any] | None) -> dict[str, Factors]:
    """What multiplies each parameter's rate, eps and decay; those that a plan does not have stay 1."""
    leaves: dict[str, Any] = dict.fromkeys(scales or ()) if model is None else _leaves(model)
    mask = decay_mask(plan, model)
    found: dict[str, Factors] = {}
    for path, leaf in leaves.items():
        if scales is not None and path not in scales:
            continue
        scale = Factors() if scales is None else scales[path]
        decays = plan.weight_decay > 0 and mask(path, leaf)
        found[path] = Factors(
            lr=float(scale.lr),
            eps=float(scale.eps) if plan.eps is not None else 1.0,
            weight_decay=float(scale.weight_decay) if decays else 0.0,
        )
    return found


def _leaves(model: Any, *, trainable: bool = False) -> dict[str, mx.array]:
    if isinstance(model, nn.Module):
        model = model.trainable_parameters() if trainable else model.parameters()
    return dict(tree_flatten(model))


def _check_scales(reasons: Reasons, plan: OptimizerPlan, scales: Mapping[str, Any]) -> None:
    name, family = plan.requested_optimizer, plan.family.mup
    made_for = getattr(scales, "family", None)
    if family is None:
        reasons.add(
            "no_rule",
            "scales",
            f"there is no width rule for {name}, whose step follows shape or parameter; leave them out",
        )
    elif made_for != family:
        reasons.add(
            "family",
            "scales",
            f"made for {made_for!r}-like optimizers, but {name} needs family={family!r}; make them anew",
        )
    if plan.coupled_weight_decay and plan.weight_decay > 0:
        reasons.add(
            "no_rule",
            "coupled_weight_decay",
            f"L2 through {name} has no width rule; take adamw_torch's decoupled decay",
        )


def _check_model(reasons: Reasons, plan: OptimizerPlan, model: Any, scales: Mapping[str, Any] | None) -> None:
    leaves = _leaves(model, trainable=True)
    embeddings: tuple[str, ...] = ()
    if isinstance(model, nn.Module):
        embeddings = tuple(f"{path}." for path, part in model.named_modules() if isinstance(part, nn.Embedding))
    missing = [path for path in leaves if scales is not None and path not in scales]
    for path in missing:
        unused = sorted(set(scales or ()) - set(leaves))[:3]
        reasons.add("unscaled", path, f"has no scale (scales without a parameter: {unused}); make them from this model")
    for path, leaf in leaves.items():
        if plan.form == "muon":
            check_hidden(reasons, path, leaf, embedding=path.startswith(embeddings))
        if leaf.dtype == mx.float16 and not plan.family.schedule_free:
            reasons.add(
                "float16", path, f"is float16, where eps={plan.eps!r} is 0 or state overflows; take float32 or bfloat16"
            )
