"""A plan as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .optimizer_plan import OptimizerPlan


def plan_table(plan: OptimizerPlan) -> str:
    """Two columns, what and its value, then notes and warnings."""
    rows = [(name, value) for name, value in _rows(plan) if value is not None]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    lines += [f"note: {text}" for text in plan.notes]
    lines += [f"warning: {text}" for text in plan.warnings]
    return "\n".join(lines)


def _rows(plan: OptimizerPlan) -> list[tuple[str, Any]]:
    return [
        ("optimizer", f"{plan.optimizer_name} (asked for as {plan.requested_optimizer})"),
        ("peak rate", f"{plan.peak_lr:g}"),
        ("scheduler", _called(plan.scheduler, plan.scheduler_options)),
        ("warmup", f"{plan.warmup_updates} updates"),
        ("total", "no declared end" if plan.total_updates is None else f"{plan.total_updates} updates"),
        ("past the end", None if plan.total_updates is None else _past(plan)),
        ("micro-batches", _micro_batches(plan)),
        ("betas", plan.betas),
        ("eps", plan.eps),
        ("momentum", plan.momentum),
        ("options", _called("", plan.options) or None),
        ("weight decay", _decay(plan)),
        ("gradient clip", "none" if plan.max_grad_norm is None else f"global norm {plan.max_grad_norm:g}"),
    ]


def _called(name: str, options: tuple[tuple[str, Any], ...]) -> str:
    inside = ", ".join(f"{key}={value}" for key, value in options)
    return f"{name}({inside})" if name and inside else name or inside


def _past(plan: OptimizerPlan) -> str:
    return "holds the last rate" if plan.past_end == "hold" else "updates are refused"


def _micro_batches(plan: OptimizerPlan) -> str | None:
    if plan.iters is None and plan.grad_accumulation_steps == 1:
        return None
    left = f", {plan.leftover_micro_batches} left over" if plan.leftover_micro_batches else ""
    return f"{plan.grad_accumulation_steps} an update{left}"


def _decay(plan: OptimizerPlan) -> str:
    if plan.weight_decay == 0:
        return "none"
    kind = "coupled (L2)" if plan.coupled_weight_decay or plan.family.decay == "coupled" else "decoupled"
    named = {"all": "all parameters", "hf": "all but biases and norms"}
    where = named.get(plan.decay_mask) if isinstance(plan.decay_mask, str) else "where the function says so"
    return f"{plan.weight_decay:g}, {kind}, {where}"
