"""What an option of a config dataclass is, and what its value may be. Pure Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, field
from typing import Any

from ..errors import Reasons

LARGEST = 2**31 - 1
"""The largest size that MLX's shapes hold."""


def option(
    default: Any,
    text: str,
    *,
    group: str,
    low: float | None = None,
    above: float | None = None,
    high: float = LARGEST,
    choices: tuple[str, ...] = (),
    example: int = 128,
    metavar: str | None = None,
) -> Any:
    """A dataclass field that is an option.

    Args:
        default: Its default.
        text: Its help.
        group: Its group in the help.
        low: The least value, itself allowed.
        above: What a value must be greater than.
        high: The greatest value of a whole number.
        choices: For text, what it may be; anything but nothing if empty.
        example: A whole number that fits, where the default is none.
        metavar: What its value is called in the help of the command line, if it is a file or a folder.
    """
    limits = {"low": low, "above": above, "high": high, "choices": choices}
    metadata = {"help": text, "group": group, **limits, "metavar": metavar}
    metadata["example"] = default if type(default) is int else example
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def check(reasons: Reasons, item: Field[Any], value: Any) -> None:
    """Keep what is wrong with the value of one option: its type, its range, its characters."""
    kind = str(item.type)
    if value is None and "None" in kind:
        return
    wanted = "str" if item.metadata["choices"] else kind.removesuffix(" | None").split("[")[0]
    accepted = _ACCEPTED[wanted]
    if not isinstance(value, accepted) or (isinstance(value, bool) and wanted != "bool"):
        example = f"one such as {item.metadata['example']}" if wanted == "int" else _EXAMPLES[accepted]
        reasons.add("type", item.name, f"{value!r} is not {_NAMES[accepted]}; give {example}")
    elif wanted in ("int", "float"):
        _check_number(reasons, item.name, value, item.metadata)
    elif wanted == "str":
        _check_text(reasons, item.name, value, item.metadata["choices"])


def number_of(text: str) -> float | None:
    """A number as people write learning rates, ``0.01``, ``1e-3`` or ``2^-6``; None for any other text."""
    base, power, exponent = text.replace("**", "^").partition("^")
    try:
        value = float(base) ** float(exponent) if power else float(base)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return value if isinstance(value, float) else None


def _check_number(reasons: Reasons, name: str, value: float, metadata: Mapping[str, Any]) -> None:
    low, above, high = metadata["low"], metadata["above"], metadata["high"]
    if isinstance(value, float) and not math.isfinite(value):
        reasons.add("out_of_range", name, f"{value!r} is not finite; give a finite number")
    elif low is not None and value < low:
        reasons.add("out_of_range", name, f"{value!r} is too small; give a whole number ≥ {low:g}")
    elif above is not None and value <= above:
        reasons.add("out_of_range", name, f"{value!r} is not allowed; give a number > {above:g}")
    elif isinstance(value, int) and value > high:
        reasons.add("out_of_range", name, f"{_short(value)} is too large; give a whole number ≤ {high}")


def _check_text(reasons: Reasons, name: str, value: str, choices: tuple[str, ...]) -> None:
    if choices and value not in choices:
        reasons.add("unknown", name, f"{value!r}; choose one of: {', '.join(choices)}")
    elif not value:
        reasons.add("empty", name, "is empty; give some text, or leave it out")
    elif "\0" in value or not _is_unicode(value):
        reasons.add("characters", name, f"{value!r} holds characters that UTF-8 text has not; give it without them")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(value: int) -> str:
    return repr(value) if value < 10**30 else "a number of more than 30 digits"


_ACCEPTED: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool, "Mapping": Mapping}
_NAMES: dict[Any, str] = {
    int: "a whole number",
    (int, float): "a number",
    str: "text",
    bool: "true or false",
    Mapping: "a mapping of config fields",
}
_EXAMPLES: dict[Any, str] = {
    (int, float): "one such as 0.01",
    str: "it in quotes",
    bool: "one of them",
    Mapping: "one such as {rope_theta: 500.0}",
}
