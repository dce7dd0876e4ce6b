"""Command-line options made from a config's fields, so that an option exists in one place."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import Reasons
from ..plan.files import read_file
from ..training.options import number_of


def add_options(
    parser: argparse.ArgumentParser,
    config: type[Any],
    *,
    groups: Collection[str] | None = None,
    leave: Collection[str] = (),
    preset: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """One option for each field of a config dataclass, in its groups. Options that are not given are left out.

    Args:
        parser: Where to.
        config: The dataclass.
        groups: Only the fields of these groups.
        leave: Fields without an option here.
        preset: Defaults of the command, where they are not the dataclass's.
    """
    added: dict[str, Any] = {}
    for item in fields(config):
        name, kind = item.metadata["group"], str(item.type).removesuffix(" | None")
        choices = item.metadata["choices"]
        kind = "str" if choices else kind
        if (kind not in _TYPES and kind != "bool") or item.name in leave or (groups is not None and name not in groups):
            continue
        group = added.get(name) or added.setdefault(name, parser.add_argument_group(name))
        text = item.metadata["help"] + _default(item, preset.get(item.name, item.default))
        flag = f"--{item.name.replace('_', '-')}"
        if kind == "bool":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
        else:
            meta = item.metadata["metavar"] or "|".join(choices) or {"int": "N", "float": "X"}.get(kind, "TEXT")
            group.add_argument(flag, type=_TYPES[kind], default=argparse.SUPPRESS, metavar=meta, help=text)


def given_options(
    options: argparse.Namespace,
    config: type[Any],
    *,
    groups: Collection[str] | None = None,
    leave: Collection[str] = (),
) -> dict[str, Any]:
    """The options that were given on the command line, of those that :func:`add_options` added with these arguments."""
    names = [
        i.name for i in fields(config) if i.name not in leave and (groups is None or i.metadata["group"] in groups)
    ]
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def settings_of(options: argparse.Namespace, config: type[Any], *, leave: Collection[str] = ()) -> dict[str, Any]:
    """The settings in the file that ``-c`` names, and over them the options that were given.

    Raises:
        Refused: If the file cannot be read.
    """
    file = read_yaml(options.config, config) if options.config else {}
    return {**file, **given_options(options, config, leave=leave)}


def read_yaml(path: Path, config: type[Any]) -> Mapping[str, Any]:
    """The options in a YAML file; numbers may be written as on the command line (``1e-3`` and ``2^-6``, too).

    Args:
        path: The file; a key may be written with dashes or underscores.
        config: The dataclass of the options.

    Raises:
        Refused: If it cannot be read, is no mapping, or says the same thing twice.
    """
    content = read_file(path)
    names = [str(name).replace("-", "_") for name in content]
    reasons = Reasons()
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            reasons.add("contradiction", f"{path}: {name}", "is there with a dash and an underscore; keep one")
    reasons.refuse_if_any()
    numbers = {item.name for item in fields(config) if str(item.type).startswith("float")}
    named = dict(zip(names, content.values(), strict=True))
    return {name: _read_number(value) if name in numbers else value for name, value in named.items()}


def _read_number(value: Any) -> Any:
    """A number that YAML takes for text, as one; anything else as it is, for the config to judge."""
    if not isinstance(value, str):
        return value
    try:
        return number(value)
    except argparse.ArgumentTypeError:
        return value


def number(text: str) -> float:
    """A number as people write learning rates: ``0.01``, ``1e-3`` or ``2^-6``."""
    value = number_of(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 0.01, 1e-3 or 2^-6")
    return value


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number such as 128") from None


_TYPES: Mapping[str, Any] = {"int": whole, "float": number, "str": str}


def _default(item: Field[Any], default: Any) -> str:
    if default is None or default is MISSING or "(default" in item.metadata["help"]:
        return ""
    if isinstance(default, bool):
        return f" (default: {'yes' if default else 'no'})"
    return f" (default: {default!r})" if str(default) != str(default).strip() else f" (default: {default})"
