"""A plan back from its metadata, through the same door that its settings came in by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from mufree.errors import Reasons, refuse

from .optimizer_plan import FORMAT, OptimizerPlan
from .planning import plan_optimizer

_KEPT = ("iters", "grad_accumulation_steps", "leftover_micro_batches", "notes", "warnings")


def read_metadata(data: Any, decay_mask: Callable[[str, Any], bool] | None) -> OptimizerPlan:
    """See :meth:`OptimizerPlan.from_metadata`."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        refuse("not_a_plan", "plan", f"{data!r} is not a plan of format {FORMAT}; give what as_metadata returned")
    names = {item.name for item in fields(OptimizerPlan)} - {"optimizer_name"} | {"optimizer", "format"}
    reasons = Reasons()
    for key in sorted(names - set(data)):
        reasons.add("missing", key, "is missing from the plan; give what as_metadata returned")
    for key in sorted(set(data) - names):
        reasons.add("unknown_field", str(key), f"{data[key]!r} belongs to no field of a plan; take it out")
    mask = data.get("decay_mask")
    if isinstance(mask, str) and mask.startswith("function ") and decay_mask is None:
        reasons.add("missing", "decay_mask", f"the plan was made with the {mask}; hand it over as decay_mask=")
    reasons.refuse_if_any()
    plan = _replanned(data, decay_mask or mask)
    if plan.optimizer_name != data["optimizer"]:
        refuse(
            "conflict",
            "optimizer",
            f"{data['optimizer']!r}, but {plan.requested_optimizer!r} is built as {plan.optimizer_name}",
        )
    kept = {key: data[key] for key in _KEPT}
    return replace(plan, **kept | {key: tuple(kept[key]) for key in ("notes", "warnings")})


def _replanned(data: Mapping[str, Any], mask: Any) -> OptimizerPlan:
    return plan_optimizer(
        optimizer=data["requested_optimizer"],
        lr=data["peak_lr"],
        scheduler=data["scheduler"],
        scheduler_kwargs=data["scheduler_options"],
        warmup_steps=data["warmup_updates"],
        total_updates=data["total_updates"],
        past_end=data["past_end"],
        weight_decay=data["weight_decay"],
        decay_mask=mask,
        coupled_weight_decay=data["coupled_weight_decay"],
        betas=data["betas"],
        eps=data["eps"],
        momentum=data["momentum"],
        optim_args=data["options"],
        max_grad_norm=data["max_grad_norm"],
    )
