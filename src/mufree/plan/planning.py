"""Settings in, a plan or a refusal out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mufree.errors import Reasons

from . import ranges
from .cautions import cautions
from .families import Family
from .names import Built, check_name, family_of, normalised
from .optimizer_plan import DecayMask, OptimizerPlan, PastEnd
from .options import check_betas, check_common, check_options, own_options
from .ranges import NON_NEGATIVE, POSITIVE
from .schedule_options import Schedule, check_schedule
from .updates import count_updates, count_warmup

WEIGHT_DECADES = 30  # float32 sums averaging weights from 1e-30 to 1e30 without loss


def plan_optimizer(
    *,
    optimizer: str,
    lr: float,
    scheduler: str | Mapping[str, Any] = "constant",
    warmup_ratio: float = 0.0,
    warmup_steps: int | None = None,
    warmup_rounding: str = "ceil",
    weight_decay: float = 0.0,
    total_updates: int | None = None,
    iters: int | None = None,
    grad_accumulation_steps: int = 1,
    betas: Sequence[float] | None = None,
    eps: float | None = None,
    momentum: float | None = None,
    optim_args: str | Mapping[str, Any] | None = None,
    scheduler_kwargs: Mapping[str, Any] | None = None,
    max_grad_norm: float | None = None,
    decay_mask: str | Callable[[str, Any], bool] = "all",
    coupled_weight_decay: bool = False,
    past_end: str = "hold",
) -> OptimizerPlan:
    """Decide everything that will be built from plain settings, without MLX.

    Args:
        optimizer: transformers' or MLX's name of an optimizer, e.g. ``"adamw_torch"``.
        lr: The peak rate, a finite number ≥ 0.
        scheduler: transformers' name of a schedule, or mlx-lm's ``lr_schedule`` mapping.
        warmup_ratio: Warmup as a share of the updates, in [0, 1].
        warmup_steps: Warmup in updates; beside a ratio it is refused.
        warmup_rounding: ``"ceil"`` (transformers') or ``"floor"`` for a ratio that gives no whole number.
        weight_decay: λ ≥ 0.
        total_updates: Optimizer updates of the run; schedules that end need it.
        iters: Micro-batches instead, ``grad_accumulation_steps`` of which make an update.
        grad_accumulation_steps: Micro-batches an update.
        betas: β1 and β2.
        eps: ε.
        momentum: For sgd, muon and schedule_free_sgd.
        optim_args: transformers' option string, ``"key=value,key=value"``, or a mapping.
        scheduler_kwargs: The schedule's options, as transformers names them.
        max_grad_norm: Clip the gradients' global norm; ``None`` does not.
        decay_mask: ``"all"``, ``"hf"`` (no biases, no norms; the build needs the model) or ``f(path, array) -> bool``.
        coupled_weight_decay: Add λ·w to the gradient where MLX's class takes no decay.
        past_end: ``"hold"`` the last rate past ``total_updates``, or ``"refuse"`` such updates.

    Returns:
        The plan. Its ``warnings`` are worth reading.

    Raises:
        Refused: With every reason at once.

    Example:
        >>> plan = plan_optimizer(optimizer="adamw", lr=1e-3, scheduler="cosine", warmup_ratio=0.1, total_updates=100)
        >>> plan.optimizer_name, plan.warmup_updates, plan.rate(10)
        ('AdamW', 10, 0.001)
    """
    reasons = Reasons()
    built = check_name(reasons, optimizer)
    rate = ranges.real(reasons, "lr", lr)
    decay = ranges.real(reasons, "weight_decay", weight_decay)
    clip = None if max_grad_norm is None else ranges.real(reasons, "max_grad_norm", max_grad_norm, POSITIVE)
    updates = count_updates(reasons, total_updates, iters, grad_accumulation_steps)
    warmup = count_warmup(reasons, warmup_ratio, warmup_steps, warmup_rounding, updates.total)
    schedule = check_schedule(reasons, scheduler, scheduler_kwargs, lr=rate, warmup=warmup, total=updates.total)
    end = _check_end(reasons, past_end, updates.total)
    mask = _check_mask(reasons, decay_mask)
    coupled = ranges.flag(reasons, "coupled_weight_decay", coupled_weight_decay)
    common = {"betas": betas, "eps": eps, "momentum": momentum}
    if built is None:
        _check_without_family(reasons, common)
        reasons.refuse_if_any()
    family = family_of(cast(Built, built))
    key = normalised(optimizer)
    given = check_options(reasons, family, key, optim_args, weight_decay)
    _check_decay(reasons, family, key, decay, coupled=coupled)
    if family.schedule_free:
        _check_schedule_free(reasons, key, schedule, end)
        _check_weights(reasons, rate, dict(own_options(family, given))["weight_lr_power"])
    values = check_common(reasons, family, key, common, given)
    if family.schedule_free and 0.0 in ((values["betas"] or (1.0,))[0], values["momentum"]):
        reasons.add("out_of_range", "betas" if family.betas else "momentum", "0 leaves no average; give a β1 in (0, 1)")
    if cast(Built, built).betas is not None and betas is None:
        values["betas"] = cast(Built, built).betas
    reasons.refuse_if_any()
    plan = OptimizerPlan(
        requested_optimizer=key,
        optimizer_name=family.optimizer_name,
        peak_lr=cast(float, rate),
        scheduler=schedule.name,
        scheduler_options=tuple(sorted(schedule.options.items())),
        warmup_updates=schedule.warmup,
        total_updates=updates.total,
        past_end=cast(PastEnd, end),
        weight_decay=cast(float, decay),
        decay_mask=mask,
        coupled_weight_decay=coupled,
        options=own_options(family, given),
        max_grad_norm=clip,
        iters=None if iters is None else int(iters),
        grad_accumulation_steps=int(grad_accumulation_steps),
        leftover_micro_batches=updates.leftover,
        **values,
    )
    return cautions(plan, asked_for_warmup=bool(warmup_ratio or warmup_steps))


def _check_mask(reasons: Reasons, value: Any) -> DecayMask:
    if callable(value):
        return cast(DecayMask, value)
    if not isinstance(value, str) or value not in ("all", "hf"):
        reasons.add(
            "unknown_value", "decay_mask", f"{value!r} is not known; give 'all', 'hf' or a function of path and array"
        )
        return "all"
    return cast(DecayMask, value)


def _check_end(reasons: Reasons, value: Any, total: int | None) -> str | None:
    end = ranges.choice(reasons, "past_end", value, ("hold", "refuse"))
    if end == "refuse" and total is None:
        reasons.add("needs_total", "past_end", "'refuse', but no end is declared; give total_updates or iters")
    return end


def _check_without_family(reasons: Reasons, common: Mapping[str, Any]) -> None:
    """Ranges that hold for every optimizer, when the name already failed."""
    if common["betas"] is not None:
        check_betas(reasons, common["betas"])
    for field in ("eps", "momentum"):
        if common[field] is not None:
            ranges.real(reasons, field, common[field], NON_NEGATIVE)


def _check_decay(reasons: Reasons, family: Family, name: str, decay: float | None, *, coupled: bool) -> None:
    if coupled and family.decay == "decoupled":
        reasons.add(
            "conflict",
            "coupled_weight_decay",
            f"True, but {name}'s decay is decoupled; leave it out, or take an L2 optimizer",
        )
    if decay and family.decay == "none" and not coupled:
        reasons.add(
            "not_read",
            "weight_decay",
            f"{decay!r} is not taken by MLX's {family.optimizer_name}; give 0, or coupled_weight_decay=True for L2"
            + (", or adamw_torch for decoupled decay" if name == "adam" else ""),
        )


def _check_schedule_free(reasons: Reasons, name: str, schedule: Schedule, past_end: str | None) -> None:
    if schedule.name not in ("", "constant", "constant_with_warmup"):
        reasons.add(
            "conflict",
            "scheduler",
            f"{schedule.name!r} would multiply into {name}, which has none; give 'constant' or 'constant_with_warmup'",
        )
    if schedule.warmup and name == "schedule_free_radam":
        reasons.add("not_read", "warmup_steps", f"{schedule.warmup} is not read by {name}, which has no warmup; give 0")
    if past_end == "refuse":
        reasons.add("conflict", "past_end", f"'refuse', but {name} has no end to keep to; give 'hold'")


def _check_weights(reasons: Reasons, rate: float | None, power: float) -> None:
    """The averaging weight of an update is the rate to this power, summed in float32."""
    if rate and not -WEIGHT_DECADES < power * math.log10(rate) < WEIGHT_DECADES:
        reasons.add(
            "out_of_range",
            "optim_args.weight_lr_power",
            f"{power!r}: lr ** weight_lr_power is 1e{power * math.log10(rate):.0f}, which float32 cannot sum; give a "
            "smaller power (2 is usual, 0 ignores the rate)",
        )
