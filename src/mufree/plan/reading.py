"""A plan back from its metadata, through the same door that its settings came in by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from mufree.errors import Reason, Reasons, Refused, refuse

from .optimizer_plan import FORMAT, OptimizerPlan
from .planning import plan_optimizer

SETTINGS: Mapping[str, str] = {  # a plan's field: the setting that it is read back by
    "requested_optimizer": "optimizer",
    "peak_lr": "lr",
    "scheduler": "scheduler",
    "scheduler_options": "scheduler_kwargs",
    "warmup_updates": "warmup_steps",
    "options": "optim_args",
    **{
        name: name
        for name in (
            "total_updates",
            "past_end",
            "weight_decay",
            "coupled_weight_decay",
            "betas",
            "eps",
            "momentum",
            "max_grad_norm",
            "iters",
            "grad_accumulation_steps",
        )
    },
}
TEXTS = ("notes", "warnings")
FUNCTION = "function "  # how the metadata of a mask that no file can hold begins


def read_metadata(data: Any, decay_mask: Callable[[str, Any], bool] | None) -> OptimizerPlan:
    """See :meth:`OptimizerPlan.from_metadata`."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        refuse("not_a_plan", "plan", f"{data!r} is not a plan of format {FORMAT}; give what as_metadata returned")
    names = {item.name for item in fields(OptimizerPlan)} - {"optimizer_name"} | {"optimizer", "format"}
    reasons = Reasons()
    for key in sorted(names - set(data)):
        reasons.add("missing", key, "is missing from the plan; give what as_metadata returned")
    for key in sorted(set(data) - names, key=str):
        reasons.add("unknown_field", str(key), f"{data[key]!r} belongs to no field of a plan; take it out")
    mask = _mask(reasons, data.get("decay_mask"), decay_mask)
    texts = {key: _texts(reasons, key, data.get(key, ())) for key in TEXTS}
    reasons.refuse_if_any()
    plan = reasons.attempt(_replanned, data, mask)
    reasons.refuse_if_any()
    if plan is None:
        raise AssertionError("no plan and no reason")
    _check_same(reasons, data, plan)
    reasons.refuse_if_any()
    notes, warnings = (tuple(dict.fromkeys((*texts[key], *getattr(plan, key)))) for key in TEXTS)
    return replace(plan, notes=notes, warnings=warnings)


def _mask(reasons: Reasons, written: Any, given: Callable[[str, Any], bool] | None) -> Any:
    was_function = isinstance(written, str) and written.startswith(FUNCTION)
    if was_function and given is None:
        reasons.add("missing", "decay_mask", f"the plan was made with the {written}; hand it over as decay_mask=")
    if given is not None and not was_function:
        reasons.add(
            "conflict", "decay_mask", f"a function was handed over, but the plan says {written!r}; leave it out"
        )
    return given or written


def _texts(reasons: Reasons, key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        return tuple(value)
    reasons.add("not_text", key, f"{value!r} is not a list of sentences; give what as_metadata returned")
    return ()


def _replanned(data: Mapping[str, Any], mask: Any) -> OptimizerPlan:
    try:
        return plan_optimizer(decay_mask=mask, **{setting: data[key] for key, setting in SETTINGS.items()})
    except Refused as refused:
        written = {setting: key for key, setting in SETTINGS.items()}
        raise Refused(_renamed(reason, written) for reason in refused.reasons) from None


def _renamed(reason: Reason, written: Mapping[str, str]) -> Reason:
    """The reason with its field as the plan's metadata calls it."""
    name, dot, rest = reason.field.partition(".")
    return replace(reason, field=written.get(name, name) + dot + rest)


def _check_same(reasons: Reasons, data: Mapping[str, Any], plan: OptimizerPlan) -> None:
    """Keep every field that says something else than its settings lead to: no value of the file is replaced."""
    for key, planned in plan.as_metadata().items():
        if key not in (*TEXTS, "decay_mask") and _listed(data[key]) != _listed(planned):
            reasons.add(
                "conflict",
                key,
                f"{data[key]!r}, but the other fields lead to {planned!r}; give what as_metadata returned",
            )


def _listed(value: Any) -> Any:
    """The value with lists for tuples, as JSON gives them back."""
    if isinstance(value, Mapping):
        return {key: _listed(inner) for key, inner in value.items()}
    return [_listed(inner) for inner in value] if isinstance(value, list | tuple) else value
