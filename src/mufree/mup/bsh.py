"""Base shapes as text: microsoft/mup's YAML, with the base model's own forward multipliers in a comment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from ..errors import Reasons, refuse
from ..files import safe_loader
from .rules import is_multiplier

Widths = Mapping[str, tuple[int | None, ...]]
_HEADER = "# Base shapes for muP, in YAML: a number is the base size of a width, null an axis that does not scale.\n"
_FORWARD = "# Forward multipliers of the base model: "


def dump(widths: Widths, forward: Mapping[str, float]) -> str:
    """The text of a file; the same for what was parsed from it."""
    import yaml

    text = yaml.safe_dump({path: list(sizes) for path, sizes in widths.items()}, indent=4, sort_keys=True)
    comment = _FORWARD + json.dumps(dict(forward), sort_keys=True) + "\n" if forward else ""
    return _HEADER + comment + text


def read(path: str | Path) -> tuple[dict[str, tuple[int | None, ...]], dict[str, float]]:
    """The base size of every axis by parameter path, and the forward multipliers of a file.

    Raises:
        Refused: The file is damaged, or no mapping of paths to lists of whole numbers and ``null``.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        content = yaml.load(text, Loader=safe_loader())  # noqa: S506
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        _refuse(path, str(error).splitlines()[0])
    if not isinstance(content, dict):
        _refuse(path, "it holds no mapping of parameter paths to base shapes")
    problems = Reasons()
    for name, shape in content.items():
        sizes = shape if isinstance(shape, list) else [shape]
        if not isinstance(shape, list) or any(s is not None and (type(s) is not int or s < 1) for s in sizes):
            problems.add("bsh", f"{path}: {name}", f"{shape!r} is no list of whole numbers above 0 and null")
    problems.refuse_if_any()
    return {str(name): tuple(shape) for name, shape in content.items()}, _forward(path, text)


def _forward(path: str | Path, text: str) -> dict[str, float]:
    lines = [line.removeprefix(_FORWARD) for line in text.splitlines() if line.startswith(_FORWARD)]
    try:
        found = json.loads(lines[0]) if lines else {}
    except json.JSONDecodeError as error:
        _refuse(path, f"its line of forward multipliers is damaged: {error}")
    if not isinstance(found, dict) or not all(is_multiplier(value) for value in found.values()):
        _refuse(path, f"its line of forward multipliers holds {found!r}, not finite numbers above 0 by path")
    return found


def _refuse(path: str | Path, why: str) -> NoReturn:
    refuse("bsh", str(path), f"is no .bsh file: {why}")
