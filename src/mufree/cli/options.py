"""Command-line options made from a config's fields, so that an option exists in one place."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from ..errors import refuse


def add_options(
    parser: argparse.ArgumentParser,
    config: type[Any],
    *,
    groups: Collection[str] | None = None,
    leave: Collection[str] = (),
) -> None:
    """One option for each field of a config dataclass, in its groups. Options that are not given are left out.

    Args:
        parser: Where to.
        config: The dataclass.
        groups: Only the fields of these groups.
        leave: Fields without an option here.
    """
    added: dict[str, Any] = {}
    for item in fields(config):
        name, kind = item.metadata["group"], str(item.type).removesuffix(" | None")
        if (kind not in _TYPES and kind != "bool") or item.name in leave or (groups is not None and name not in groups):
            continue
        group = added.get(name) or added.setdefault(name, parser.add_argument_group(name))
        text = item.metadata["help"] + _default(item)
        flag = f"--{item.name.replace('_', '-')}"
        if kind == "bool":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
        else:
            meta = {"int": "N", "float": "X"}.get(kind, "TEXT")
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


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file.

    Raises:
        Refused: If it cannot be read or is no mapping.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        refuse("unreadable", str(path), f"{error.strerror}; give a readable YAML file")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        refuse("unreadable", str(path), f"is not YAML: {error}")
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        refuse("type", str(path), f"holds a {type(content).__name__}; write one option a line, as in 'width: 128'")
    return {str(name).replace("-", "_"): value for name, value in content.items()}


def number(text: str) -> float:
    """A number as people write learning rates: ``0.01``, ``1e-3`` or ``2^-6``."""
    base, power, exponent = text.replace("**", "^").partition("^")
    try:
        return float(base) ** float(exponent) if power else float(base)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 0.01, 1e-3 or 2^-6") from None


_TYPES: Mapping[str, Any] = {"int": int, "float": number, "str": str, "Decay": str}


def _default(item: Field[Any]) -> str:
    if item.default is None or item.default is MISSING or "(default" in item.metadata["help"]:
        return ""
    return f" (default: {item.default})"
