"""Whether a run that goes on is the one that was saved: what its settings mean is compared, and what it is made of.

Where a model or data lie is not: another path to the same content is the same run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...errors import Reasons
from .data import DEFAULTS
from .settings import LORA_DEFAULTS, FinetuneConfig

WHILE_GOING_ON = frozenset(
    {"iters", "steps_per_report", "save_every", "train", "test", "test_batches", "report_to", "project_name", "config"}
    | {"clear_cache_threshold", "adapter_path", "grad_checkpoint"}
)
"""Settings that may change when a run goes on: they change no update."""
PLACES = ("model", "data", "tuned_on")
"""Settings that say where something is, which is compared by its content."""
_DECIDING = ("optimizer", "optimizer_config", "learning_rate", "lr_schedule", "warmup")
"""Settings that mean what the plan made of them."""
_NO_UPDATE = ("iters", "total_updates", "leftover_micro_batches", "lines", "notes", "warnings", "requested_optimizer")
"""What of a plan changes no update, or is told by other settings."""
_SAME_AS_NONE = {"lora_parameters": LORA_DEFAULTS} | {f"{kind}_feature": name for kind, name in DEFAULTS.items()}
_WORDS = {
    "model_config": ("model", "its config is another"),
    "base_weights": ("model", "its weights are others"),
    "tokenizer": ("model", "its tokenizer or chat template is another"),
    "train_rows": ("data", "the rows of its training set are others"),
    "valid_rows": ("data", "the rows of its validation set are others"),
    "scaling": ("tuned_on", "it gives other multipliers"),
}
"""By part of a run's identity: which setting it comes from, and what is wrong with it."""
_LATER = ("base_weights", "tokenizer")
"""Parts that runs of earlier versions do not name, and that not every model has."""


def differences(
    config: FinetuneConfig, identity: Mapping[str, Any], plan: Mapping[str, Any], saved: Mapping[str, Any]
) -> Reasons:
    """Every difference from a saved run that would change an update.

    Args:
        config: The settings now.
        identity: What the run is made of now.
        plan: What the settings mean now.
        saved: The saved run's ``settings``, ``identity`` and ``plan``.
    """
    reasons, before = Reasons(), saved["settings"]
    same_plan = _deciding(plan) == _deciding(saved.get("plan") or {})
    left = {*WHILE_GOING_ON, *PLACES, *(_DECIDING if same_plan else ())}
    if "base_weights" not in saved["identity"] and not _same_place(config.model, before.get("model")):
        left.discard("model")  # a run of which only the path is known
    for name in (item.name for item in fields(config) if item.name not in left):
        value = getattr(config, name)
        if _meant(name, value) != _meant(name, before.get(name)):
            message = f"{value!r} contradicts the saved run's {before.get(name)!r}; leave it out"
            reasons.add("contradiction", name, message)
    ends = plan.get("meaning") == "mufree" and plan["scheduler"] not in ("constant", "mlx_lm")
    if ends and config.iters != before["iters"]:
        message = f"{config.iters} would change the schedule, planned for {before['iters']}; leave it out"
        reasons.add("contradiction", "iters", message)
    for name, value in identity.items() if not reasons.found else ():
        known = name not in _LATER or (value is not None and saved["identity"].get(name) is not None)
        if known and _plain(value) != saved["identity"].get(name):
            where, fault = _WORDS[name]
            message = f"contradicts the saved run: {fault}; give the one that it started with"
            reasons.add("contradiction", where, f"{getattr(config, where)!r} {message}")
    return reasons


def _meant(name: str, value: Any) -> Any:
    return _plain(_SAME_AS_NONE.get(name) if value is None else value)


def _deciding(plan: Mapping[str, Any]) -> Any:
    return _plain({name: value for name, value in plan.items() if name not in (*_NO_UPDATE, "scales")})


def _same_place(one: str, other: Any) -> bool:
    return one == other or (
        isinstance(other, str) and Path(one).exists() and Path(one).resolve() == Path(other).resolve()
    )


def _plain(value: Any) -> Any:
    """As it is after JSON."""
    return json.loads(json.dumps(value))
