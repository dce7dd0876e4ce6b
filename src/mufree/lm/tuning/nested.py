"""What may stand in the settings that are mappings themselves. Pure Python."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from ...errors import Reasons
from ...plan import mlx_lm
from ...training.options import LARGEST

LORA = ("rank", "dropout", "scale", "keys")
FEATURES = ("prompt_feature", "completion_feature", "chat_feature", "text_feature")
HF_DATASET = ("path", "config", "train_split", "valid_split", "test_split", "mask_prompt", *FEATURES)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_SIZE = re.compile(r"\d+(\.\d+)?\s*(M|G|MB|GB)?", re.IGNORECASE)
_UNITS = {"": 1, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9}


def check_lora_parameters(reasons: Reasons, value: Any) -> None:
    """Keep what is wrong with ``lora_parameters``."""
    where = "lora_parameters"
    if not _is_mapping(reasons, where, value):
        return
    hints = {"alpha": "mlx-lm's word is scale, which is alpha / rank elsewhere."}
    _check_keys(reasons, where, value, LORA, hints)
    for name in LORA[:3]:
        if name not in value:
            reasons.add("missing", f"{where}.{name}", "is missing; a mapping replaces all of mlx-lm's defaults")
    _check(
        reasons,
        f"{where}.rank",
        value,
        "rank",
        lambda v: _whole(v) and 1 <= v <= LARGEST,
        f"a whole number from 1 to {LARGEST}",
    )
    _check(reasons, f"{where}.dropout", value, "dropout", lambda v: _real(v) and 0 <= v < 1, "a number in [0, 1)")
    _check(reasons, f"{where}.scale", value, "scale", _real, "a finite number")
    keys = value.get("keys")
    if keys is not None and not (isinstance(keys, list | tuple) and keys and all(isinstance(k, str) for k in keys)):
        reasons.add("type", f"{where}.keys", f"{keys!r}; give a list of layer names such as [self_attn.q_proj]")


def check_hf_dataset(reasons: Reasons, value: Any) -> None:
    """Keep what is wrong with ``hf_dataset``: one mapping, or a list of them."""
    entries = value if isinstance(value, list | tuple) else [value]
    if not entries:
        reasons.add("empty", "hf_dataset", "is an empty list; give one mapping or more")
    for number, entry in enumerate(entries):
        where = f"hf_dataset[{number}]" if isinstance(value, list | tuple) else "hf_dataset"
        if not _is_mapping(reasons, where, entry):
            continue
        _check_keys(reasons, where, entry, HF_DATASET, {})
        if not isinstance(entry.get("path"), str):
            reasons.add("missing", f"{where}.path", "is no name of a dataset; give its folder or its hub name")
        if not isinstance(entry.get("config", {}), Mapping):
            reasons.add("type", f"{where}.config", f"{entry['config']!r} is no mapping of load_dataset's arguments")


def check_optimizer_config(reasons: Reasons, value: Any) -> None:
    """Keep what is wrong with the shape of ``optimizer_config``; its contents are the optimizer's affair."""
    if _is_mapping(reasons, "optimizer_config", value):
        for name, settings in value.items():
            _is_mapping(reasons, f"optimizer_config.{name}", settings if settings is not None else {})


def check_lr_schedule(reasons: Reasons, value: Any) -> None:
    """Keep what is wrong with mlx-lm's schedule mapping."""
    if not _is_mapping(reasons, "lr_schedule", value):
        return
    found = Reasons()
    mlx_lm.check_mapping(found, value, None)
    for reason in found.found:
        reasons.found.append(replace(reason, field=reason.field.replace("scheduler", "lr_schedule", 1)))


def as_numbers(value: Any) -> Any:
    """The same with every text that mlx-lm's YAML reader takes for a number as one, such as ``1e-6``."""
    if isinstance(value, Mapping):
        return {name: as_numbers(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(as_numbers(entry) for entry in value)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value) if value.lstrip("+-").isdigit() else float(value)
    return value


def check_size(reasons: Reasons, value: Any) -> None:
    """Keep what is wrong with a size in bytes."""
    fine = value >= 0 if _whole(value) else isinstance(value, str) and _SIZE.fullmatch(value.strip())
    if not fine:
        reasons.add("type", "clear_cache_threshold", f"{value!r} is no size; give bytes, or text such as 500MB or 2GB")


def size_of(value: int | str | None) -> int:
    """A checked size in bytes; none is 0."""
    digits, unit = re.fullmatch(r"([\d.]+)\s*(\w*)", str(value or 0).strip()).groups()  # type: ignore[union-attr]
    return int(float(digits) * _UNITS[unit.upper()])


def _check_keys(
    reasons: Reasons, where: str, value: Mapping[str, Any], known: Collection[str], hints: Mapping[str, str]
) -> None:
    for name in value:
        if name not in known:
            reasons.add_unknown(f"{where}.{name}", name, known, "key", hints.get(name))


def _check(
    reasons: Reasons, where: str, value: Mapping[str, Any], name: str, fits: Callable[[Any], bool], wanted: str
) -> None:
    if name in value and not fits(value[name]):
        reasons.add("out_of_range", where, f"{value[name]!r}; give {wanted}")


def _is_mapping(reasons: Reasons, where: str, value: Any) -> bool:
    if not isinstance(value, Mapping):
        reasons.add("type", where, f"{value!r} is no mapping; write its keys and values")
    return isinstance(value, Mapping)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
