"""A plan's rate as MLX takes it: a float when it is constant, else a table indexed by the update."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mufree.plan import OptimizerPlan, mlx_lm
from mufree.schedules import rate_table

if TYPE_CHECKING:
    import mlx.core as mx


def build_lr_schedule(plan: OptimizerPlan) -> float | Callable[[mx.array], mx.array]:
    """The rate of a plan.

    Args:
        plan: What :func:`~mufree.plan.plan_optimizer` decided.

    Returns:
        A Python float when every update has the same rate, without importing MLX. Otherwise ``f(step)``: a 0-d step
        (the number of updates already made) to a 0-d float32 rate. It is a look-up in a table of the rates computed
        in float64 and rounded once, so it is the same plain and compiled. Past the table it keeps the last rate, or
        gives 0 where the plan refuses such updates.

    Example:
        >>> import mlx.core as mx
        >>> from mufree import build_lr_schedule, plan_optimizer
        >>> settings = {"optimizer": "adamw", "lr": 0.5, "total_updates": 4, "past_end": "refuse"}
        >>> build_lr_schedule(plan_optimizer(**settings))
        0.5
        >>> schedule = build_lr_schedule(plan_optimizer(scheduler="linear", **settings))
        >>> [schedule(mx.array(step)).item() for step in range(5)]
        [0.5, 0.375, 0.25, 0.125, 0.0]

    References:
        transformers 5, ``transformers.optimization.get_scheduler``; an ``lr_schedule`` mapping is mlx-lm's
        ``mlx_lm.tuner.utils.build_schedule``.
    """
    if plan.has_constant_rate:
        return plan.peak_lr
    import mlx.core as mx

    if plan.scheduler == mlx_lm.NAME:
        return _mlx_lm_schedule(plan)
    rates = rate_table(
        plan.scheduler,
        lr=plan.peak_lr,
        warmup=plan.warmup_updates,
        total=plan.total_updates,
        options=plan.scheduler_kwargs,
    )
    if plan.total_updates is not None and plan.past_end == "refuse":
        rates.append(0.0)
    table, last = mx.array(rates, dtype=mx.float32), len(rates) - 1
    return lambda step: table[mx.minimum(step, last)]


def _mlx_lm_schedule(plan: OptimizerPlan) -> Callable[[mx.array], mx.array]:
    """The very composition that mlx-lm makes, late join included; it stays at its last planned value, and above 0."""
    import mlx.core as mx
    from mlx.optimizers import schedulers

    options = plan.scheduler_kwargs
    schedule = getattr(schedulers, options["name"])(*options["arguments"])
    if options["warmup"]:
        rising = schedulers.linear_schedule(options["warmup_init"], options["arguments"][0], options["warmup"])
        schedule = schedulers.join_schedules([rising, schedule], [options["warmup"] + 1])
    if plan.total_updates is None:
        return lambda step: mx.maximum(schedule(step), 0.0)
    last, refusing = plan.total_updates - 1, plan.past_end == "refuse"

    def bounded(step: mx.array) -> mx.array:
        rate = mx.maximum(schedule(mx.minimum(step, last)), 0.0)
        return mx.where(step > last, 0.0, rate) if refusing else rate

    return bounded
