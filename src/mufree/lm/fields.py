"""What the fields of a model config may hold: what mlx-lm's own classes say of their types, and no more."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from ..errors import Reasons


def check_fields(
    reasons: Reasons,
    given: Mapping[str, Any],
    *,
    types: Mapping[str, Any],
    written: Mapping[str, Any],
    fixed: Mapping[str, Any],
) -> None:
    """Keep what is wrong with the fields that somebody gave for a new config.

    Args:
        reasons: Keeps the problems.
        given: Field names and values.
        types: The type of each field that mlx-lm's model reads.
        written: The config without what is given.
        fixed: Of it, the sizes that are options of their own.
    """
    for name, value in given.items():
        where = f"model.{name}"
        if name not in types and name not in written:
            known = ", ".join(sorted({*types, *written}))
            reasons.add("unknown", where, f"{written['model_type']} has no such field; it has: {known}")
        elif name in fixed:
            if value != fixed[name]:
                reasons.add("contradiction", where, f"{value!r} is not the {fixed[name]} of the options; leave it out")
        elif name not in types:
            if value != written[name]:
                message = f"{value!r} is not what mlx-lm's {written['model_type']} computes; leave it out"
                reasons.add("contradiction", where, message)
        else:
            _check_value(reasons, where, types[name], value, may_be_none=name not in written)


def _check_value(reasons: Reasons, where: str, kind: Any, value: Any, *, may_be_none: bool) -> None:
    options = [option for option in _options(kind) if option is not type(None)]
    if value is None:
        if not may_be_none:
            reasons.add("type", where, "None is no value for it; leave it out")
    elif not any(_fits(option, value) for option in options):
        allowed = " or ".join(dict.fromkeys(_words(option) for option in options))
        reasons.add("type", where, f"{value!r} is not {allowed}")
    elif not _is_json(value):
        reasons.add(
            "type", where, f"{value!r} cannot be written as JSON; give numbers, texts, lists and mappings of them"
        )


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _fits(kind: Any, value: Any) -> bool:
    plain = get_origin(kind) or kind
    if plain is Any:
        return True
    if plain in (int, float):
        number = isinstance(value, int if plain is int else (int, float)) and not isinstance(value, bool)
        return number and math.isfinite(value) and value > 0
    return isinstance(value, plain)


def _words(kind: Any) -> str:
    plain = get_origin(kind) or kind
    return _WORDS.get(plain, f"a {getattr(plain, '__name__', plain)}")


_WORDS = {
    int: "a positive whole number",
    float: "a positive number",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "a mapping",
}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True
