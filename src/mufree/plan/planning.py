"""Settings in, a plan or a refusal out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mufree.errors import Reasons

from . import ranges
from .agreement import Asked, check_rule
from .cautions import cautions
from .names import BUILT, check_name, family_of, normalised
from .optimizer_plan import DecayMask, OptimizerPlan, PastEnd
from .ranges import POSITIVE
from .schedule_options import check_schedule
from .updates import count_updates, count_warmup


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
        >>> from mufree import plan_optimizer
        >>> plan = plan_optimizer(optimizer="adamw", lr=1e-3, scheduler="cosine", warmup_ratio=0.1, total_updates=100)
        >>> plan.optimizer_name, plan.warmup_updates, plan.rate(10)
        ('AdamW', 10, 0.001)

    References:
        transformers 5, ``TrainingArguments``, ``transformers.optimization.get_scheduler`` and ``Trainer``'s optimizers.
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
    key = normalised(optimizer) if built else ""
    asked = Asked(name=key, schedule=schedule, rate=rate, decay=decay, coupled=coupled, end=end)
    own = check_rule(reasons, built, {"betas": betas, "eps": eps, "momentum": momentum}, optim_args, asked)
    reasons.refuse_if_any()
    plan = OptimizerPlan(
        requested_optimizer=key,
        optimizer_name=family_of(BUILT[key]).optimizer_name,
        peak_lr=cast(float, rate),
        scheduler=schedule.name,
        scheduler_options=tuple(sorted(schedule.options.items())),
        warmup_updates=schedule.warmup,
        total_updates=updates.total,
        past_end=cast(PastEnd, end),
        weight_decay=cast(float, decay),
        decay_mask=mask,
        coupled_weight_decay=coupled,
        max_grad_norm=clip,
        iters=None if iters is None else int(iters),
        grad_accumulation_steps=int(grad_accumulation_steps),
        leftover_micro_batches=updates.leftover,
        **own,
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
