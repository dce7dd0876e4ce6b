"""The scales of a fine-tune: its settings' words for what the rate was tuned on, and what the plan shows of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import Refused
from ...mup import Scales
from ..lora_base import config_of
from ..lora_scales import lora_scales
from .settings import BASES, SCALING, FinetuneConfig


def scales_of(config: FinetuneConfig, model: Any, model_config: Mapping[str, Any]) -> Scales | None:
    """The scales of everything that is trained, or None where no setting asks for them.

    Args:
        config: The settings.
        model: The model, its adapters attached.
        model_config: Its config, for a model that does not keep it.

    Raises:
        Refused: If the base cannot be read or does not fit, under the settings' own names.
    """
    given = next((name for name in BASES if getattr(config, name) is not None), None)
    if given is None and config.lora_ratio is None:
        return None
    try:
        return lora_scales(
            model,
            getattr(config, given) if given else None,
            config=config_of(model) or model_config,
            ratio=config.lora_ratio,
        )
    except Refused as refused:
        raise type(refused)(replace(r, field=_named(r.field, given)) for r in refused.reasons) from None


def identity(scales: Scales | None) -> str | None:
    """A hash of every multiplier (16 hex digits)."""
    if scales is None:
        return None
    rows = sorted([path, scale.lr, scale.eps, scale.weight_decay] for path, scale in scales.items())
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def as_metadata(config: FinetuneConfig, scales: Scales | None) -> dict[str, Any] | None:
    """What was asked for and what came of it, as JSON can hold it; layers that repeat are one entry with ``*``."""
    if scales is None:
        return None
    groups: dict[str, dict[str, Any]] = {}
    for path, scale in scales.items():
        numbers = ("kind", "m_in", "m_out", "multiplier", "lr", "eps", "weight_decay")
        entry = {"paths": _starred(path), **{name: getattr(scale, name) for name in numbers}}
        groups.setdefault(json.dumps(entry), {**entry, "count": 0})["count"] += 1
    asked = {name: getattr(config, name) for name in SCALING}
    return {**asked, "family": scales.family, "groups": list(groups.values())}


def summary(config: FinetuneConfig, scales: Scales | None) -> str:
    """One line: relative to what, and what that means for A and B."""
    rest = "every weight" if config.fine_tune_type == "full" else "A and B alike"
    if scales is None:
        return f"none: the rate is used as it is, for {rest}"
    base = config.tuned_on or (f"width {config.base_width}" if config.base_width else "this model itself")
    ratio = f"; B's rate is {config.lora_ratio:g} times A's there (LoRA+)" if config.lora_ratio else ""
    return f"the rate is that of {base}{ratio}"


def table_lines(scales: Scales | None) -> tuple[str, ...]:
    """The scales' table, as lines of the plan."""
    return () if scales is None else ("", *scales.table().splitlines(), "")


def _starred(path: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def _named(field: str, given: str | None) -> str:
    """A part of the base or the ratio as the settings call it."""
    first, dot, rest = field.partition(".")
    names = {"base": given or "tuned_on", "width": "base_width", "ratio": "lora_ratio"}
    return f"{names.get(first, first)}{dot}{rest}"
