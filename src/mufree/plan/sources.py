"""The settings that a transformers ``TrainingArguments`` dict means.

Such a file describes a transformers run, so its defaults are transformers': decay spares biases and
norms, gradients are clipped at ``max_grad_norm`` (0 is off), ``weight_decay`` reaches every optimizer, coupled where
torch couples it, and Adam's betas and eps reach only the optimizers that transformers hands them to.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from mufree.errors import Reasons

from .names import BUILT, family_of, normalised
from .ranges import is_number

HF_DEFAULTS: Mapping[str, Any] = {
    "optim": "adamw_torch",
    "optim_args": None,
    "learning_rate": 5e-5,
    "lr_scheduler_type": "linear",
    "lr_scheduler_kwargs": None,
    "warmup_ratio": None,
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
    "max_steps": -1,
    "gradient_accumulation_steps": 1,
    "optim_target_modules": None,
    "deepspeed": None,
    "adafactor": False,
}
ADAM_EPS_FORMS = ("adamw", "adamw_anyprecision", "adamw_hf", "schedule_free_adamw", "schedule_free_radam")
BETAS_FORMS = (*ADAM_EPS_FORMS, "lion")
RATIO_END = 1.0
NEAR = 0.85  # how alike two names must be; the nearest that transformers itself has are 0.80
OVERRIDING = ("optimizer", "scheduler")  # what a DeepSpeed configuration may bring in place of transformers' own


def from_training_arguments(data: Mapping[str, Any], *, total_updates: int | None = None) -> dict[str, Any]:
    """The keyword arguments of :func:`~mufree.plan.plan_optimizer` that a ``TrainingArguments`` dict means.

    Args:
        data: ``TrainingArguments.to_dict()``, whole or in part; what is missing has transformers' default. Fields that
            say nothing about optimizer or schedule are left alone; a name that is nearly one of those that do is not.
        total_updates: The run's updates, where ``max_steps`` does not say (-1): that depends on the data.

    Raises:
        Refused: A field that transformers reads and no plan can hold.
    """
    reasons = Reasons()
    values = {key: _plain(data.get(key, default)) for key, default in HF_DEFAULTS.items()}
    _check_rest(reasons, data, values)
    if values["adafactor"] is True:
        values["optim"] = "adafactor"
    settings: dict[str, Any] = {
        "optimizer": values["optim"],
        "lr": values["learning_rate"],
        "scheduler": values["lr_scheduler_type"],
        "scheduler_kwargs": _options(reasons, values["lr_scheduler_kwargs"]),
        "optim_args": values["optim_args"],
        "weight_decay": values["weight_decay"],
        "max_grad_norm": None if values["max_grad_norm"] == 0 else values["max_grad_norm"],
        "grad_accumulation_steps": values["gradient_accumulation_steps"],
        "decay_mask": "hf",
        "total_updates": _total(reasons, values["max_steps"], total_updates),
        **_warmup(values),
    }
    reasons.refuse_if_any()
    return settings | _reached(values)


def _check_rest(reasons: Reasons, data: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """What no plan can hold, and names that nothing reads but were surely meant for one that something does."""
    for key in data:
        near = difflib.get_close_matches(str(key), HF_DEFAULTS, n=1, cutoff=NEAR)
        if key not in HF_DEFAULTS and near:
            reasons.add("unknown_key", str(key), f"is no field of TrainingArguments; did you mean {near[0]!r}?")
    if values["optim_target_modules"] is not None:
        reasons.add(
            "not_built",
            "optim_target_modules",
            f"{values['optim_target_modules']!r} is for low-rank optimizers, which are not built; take it out",
        )
    deepspeed = values["deepspeed"]
    if deepspeed and not (isinstance(deepspeed, Mapping) and not set(OVERRIDING) & set(deepspeed)):
        reasons.add(
            "not_built",
            "deepspeed",
            f"{deepspeed!r} may bring an optimizer and a schedule of its own; set null and name them in optim and "
            "lr_scheduler_type",
        )


def _plain(value: Any) -> Any:
    """An enum's value, or the value itself."""
    return getattr(value, "value", value)


def _options(reasons: Reasons, value: Any) -> Any:
    """Schedule options, which transformers also writes as JSON text."""
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            reasons.add("not_json", "lr_scheduler_kwargs", f"{value!r} is not a JSON object; give one")
            return None
    return value or None


def _total(reasons: Reasons, max_steps: Any, given: int | None) -> Any:
    if max_steps is not None and not is_number(max_steps):
        reasons.add("not_a_number", "max_steps", f"{max_steps!r} is not a number; give the updates, or -1 if unknown")
        return None
    known = max_steps is not None and not max_steps <= 0
    if known and given is not None and given != max_steps:
        reasons.add("conflict", "total_updates", f"{given!r}, but max_steps is {max_steps!r}; give one of them")
    return max_steps if known else given


def _warmup(values: Mapping[str, Any]) -> dict[str, Any]:
    """Steps win over a ratio (transformers 4); steps below 1 are a ratio, others are cut to whole ones (5)."""
    steps, ratio = values["warmup_steps"], values["warmup_ratio"]
    if is_number(steps) and 0 < steps < RATIO_END:
        return {"warmup_ratio": steps}
    if is_number(steps) and steps >= RATIO_END and float(steps) < float("inf"):
        return {"warmup_steps": int(steps)}
    if steps in (0, None):
        return {"warmup_ratio": 0.0 if ratio is None else ratio}
    return {"warmup_steps": steps}


def _reached(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that transformers hands to this optimizer and not to others."""
    name = values["optim"]
    built = BUILT.get(normalised(name)) if isinstance(name, str) else None
    found: dict[str, Any] = {}
    if built is None:
        return found
    if built.family in BETAS_FORMS:
        found["betas"] = (values["adam_beta1"], values["adam_beta2"])
    if built.family in ADAM_EPS_FORMS:
        found["eps"] = values["adam_epsilon"]
    if family_of(built).decay == "none" and values["weight_decay"]:
        found["coupled_weight_decay"] = True
    return found
