"""What an optimizer reads beyond rate and decay: betas, eps, momentum, and transformers' option string."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mufree.errors import Reasons

from . import ranges
from .families import COMMON, Family, Option
from .ranges import BELOW_ONE, NON_NEGATIVE, POSITIVE

_TRUE = frozenset({"true", "1", "yes"})
_FALSE = frozenset({"false", "0", "no"})


def check_betas(reasons: Reasons, value: Any) -> tuple[float, float] | None:
    """Two numbers in [0, 1), the second one far enough below 1 for float32."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        reasons.add("not_a_pair", "betas", f"{value!r} is not a pair; give two numbers in [0, 1), e.g. (0.9, 0.999)")
        return None
    first = ranges.real(reasons, "betas[0]", value[0], BELOW_ONE)
    second = ranges.real(reasons, "betas[1]", value[1], BELOW_ONE)
    if second is not None and ranges.as_float32(second) == 1.0:
        reasons.add(
            "vanishing",
            "betas[1]",
            f"{value[1]!r} is 1 in float32, so that 1 − β2 vanishes and nothing moves; give at most 0.99999",
        )
        return None
    return None if first is None or second is None else (first, second)


def parse_option_string(reasons: Reasons, text: Any) -> dict[str, str]:
    """``"key=value,key=value"`` as a dict; a mapping is taken as it is."""
    if isinstance(text, Mapping):
        return {str(key): str(value) for key, value in text.items()}
    if text is None or (isinstance(text, str) and not text.strip()):
        return {}
    if not isinstance(text, str):
        reasons.add("not_a_string", "optim_args", f"{text!r} is not a string; write it as 'key=value,key=value'")
        return {}
    found: dict[str, str] = {}
    for piece in text.replace(" ", "").split(","):
        key, equals, value = piece.partition("=")
        if not (key and equals and value):
            reasons.add("not_an_option", "optim_args", f"{piece!r} in {text!r} is not of the form key=value")
        elif key in found:
            reasons.add("given_twice", "optim_args", f"{key!r} is given twice in {text!r}; give it once")
        else:
            found[key] = value
    return found


def read_option(reasons: Reasons, field: str, text: str, option: Option) -> Any:
    """An option's value from its text, or ``None`` with the problem kept."""
    value: Any
    if option.kind == "flag":
        word = text.lower()
        if word not in _TRUE | _FALSE:
            reasons.add("not_a_flag", field, f"{text!r} is neither true nor false; give one of them")
            return None
        value = word in _TRUE
    elif option.kind == "choice":
        value = text
    else:
        try:
            number = float(text)
        except ValueError:
            reasons.add("not_a_number", field, f"{text!r} is not a number; give a finite number {option.allowed}")
            return None
        value = ranges.real(reasons, field, number, option.allowed)
        if option.kind == "whole" and value is not None:
            value = ranges.whole(reasons, field, value)
    if option.only and value is not None and value not in option.only:
        reasons.add("not_built", field, f"{text!r} cannot be honoured ({option.why}); only {option.only[0]!r} is built")
        return None
    return value


def check_options(reasons: Reasons, family: Family, name: str, text: Any, weight_decay: Any) -> dict[str, Any]:
    """The given options of a family, each read or refused."""
    values: dict[str, Any] = {}
    for key, raw in parse_option_string(reasons, text).items():
        field = f"optim_args.{key}"
        if key in family.options:
            option = family.options[key]
            value = read_option(reasons, field, raw, option)
            if value is not None and not option.only:
                values[key] = value
        elif key == "weight_decay" and _same_number(raw, weight_decay):
            continue
        elif key == "weight_decay":
            reasons.add(
                "not_read", field, f"{raw!r} never acts in transformers; give weight_decay, which is {weight_decay!r}"
            )
        else:
            known = ", ".join(sorted(family.options)) or "no options at all"
            reasons.add("not_read", field, f"{raw!r} is not read by {name}, which takes {known}; take it out")
    return values


def _same_number(text: str, value: Any) -> bool:
    try:
        return bool(float(text) == value)
    except ValueError:
        return False


def check_common(
    reasons: Reasons, family: Family, name: str, given: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Betas, eps and momentum: what was given, or the family's default where it reads the setting at all."""
    values: dict[str, Any] = {}
    for field in COMMON:
        default = getattr(family, field)
        value = given[field]
        if value is not None:
            value = _check_one(reasons, field, value, positive=family.positive_eps)
            if default is None:
                reasons.add("not_read", field, f"{given[field]!r} is not read by {name}; leave {field} out")
        in_string = options.get(field)
        if value is not None and in_string is not None and value != in_string:
            reasons.add("conflict", field, f"{value!r} here and {in_string!r} in optim_args; give it once")
        values[field] = next((v for v in (value, in_string, default) if v is not None), None)
    return values


def _check_one(reasons: Reasons, field: str, value: Any, *, positive: bool) -> Any:
    if field == "betas":
        return check_betas(reasons, value)
    if field == "eps":
        return ranges.real(reasons, "eps", value, POSITIVE if positive else NON_NEGATIVE)
    return ranges.real(reasons, "momentum", value, BELOW_ONE)


def own_options(family: Family, given: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Every option that the class takes beyond the common ones, given or default, sorted by name."""
    return tuple(
        (key, given.get(key, option.default))
        for key, option in sorted(family.options.items())
        if key not in COMMON and not option.only
    )
