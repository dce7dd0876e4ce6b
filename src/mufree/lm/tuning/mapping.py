"""Settings from a mapping or a file, with a word for each key that is none. Pure Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...errors import Reasons, nearest, refuse
from ...plan.files import read_file
from ...plan.names import normalised
from .settings import FinetuneConfig

_RENAMED = {"lora_layers": "num_layers", "lr": "learning_rate"}
"""What mlx-lm once called a key, or others do."""
_OF_OPTIMIZERS = ("max_grad_norm", "weight_decay", "betas", "eps", "momentum")
_OF_LORA = ("rank", "dropout", "scale", "keys")
_FREE = "schedule_free_adamw"


def with_file(settings: Any, source: str = "config") -> dict[str, Any]:
    """Settings with those of the YAML file that their ``config`` names under them.

    Args:
        settings: Keys and values, or the path of a YAML file alone.
        source: Where they come from, for the errors.

    Raises:
        Refused: If the file cannot be read or names another one, and for what is neither a mapping nor a path.
    """
    if isinstance(settings, str | os.PathLike):
        settings = {"config": settings}
    if not isinstance(settings, Mapping):
        message = "is no mapping of settings; give mlx-lm's keys and their values, or the path of a YAML file"
        refuse("type", source, f"{settings!r} {message}")
    given = {name: value for name, value in settings.items() if name != "config"}
    file = settings.get("config")
    if file is None:
        return given
    if not isinstance(file, str | os.PathLike):
        refuse("type", "config", f"{file!r} is not a path; give that of a YAML file")
    content = {str(name).replace("-", "_"): value for name, value in read_file(Path(file)).items()}
    if content.pop("config", None) is not None:
        refuse("conflict", f"{file}: config", "names a further file; put its settings into this one")
    return content | {name: value for name, value in given.items() if value is not None}


def from_mapping(settings: Any, source: str = "config") -> FinetuneConfig:
    """A config from a parsed file; what is null there is as if it were missing, as in mlx-lm.

    Args:
        settings: Keys and values; a file that ``config`` names is read too, and the others win over it.
        source: Where they come from, for the errors.

    Raises:
        Refused: For unknown keys and wrong values, all at once.
    """
    settings = with_file(settings, source)
    reasons = Reasons()
    known = sorted(item.name for item in fields(FinetuneConfig))
    _keep_unknown(reasons, settings, source, known)
    values = {name: value for name, value in settings.items() if name in known and value is not None}
    return reasons.settled(reasons.attempt(FinetuneConfig, **values))


def _keep_unknown(reasons: Reasons, settings: Mapping[str, Any], source: str, known: list[str]) -> None:
    """Keep every key that is none, each with what was meant, and the list of those there are once."""
    unknown = [name for name in settings if name not in known]
    hints = {name: _meant(name, settings) for name in unknown}
    listed = [name for name in unknown if hints[name] is None][-1:]
    for name in unknown:
        near = nearest(str(name), known)
        hint = hints[name] or (f"did you mean {near}?" if near else "")
        keys = f"the keys are: {', '.join(known)}" if name in listed else ""
        if hint and keys:
            keys = f" {keys[0].upper()}{keys[1:]}"
        told = f"; {hint}{keys}" if hint or keys else ""
        reasons.add("unknown", f"{source}: {name}", f"no such key{told}")


def _meant(name: Any, settings: Mapping[str, Any]) -> str | None:
    """Where a setting goes that is known by this name elsewhere."""
    if name in _RENAMED:
        return f"mlx-lm's word is {_RENAMED[name]}"
    if name in _OF_LORA:
        return f"give it in lora_parameters: {{{name}: {settings[name]}}}"
    if name in _OF_OPTIMIZERS:
        optimizer = settings.get("optimizer")
        of = normalised(optimizer) if optimizer and isinstance(optimizer, str) else _FREE
        return f"give it in optimizer_config: {{{of}: {{{name}: {settings[name]}}}}}"
    return None
