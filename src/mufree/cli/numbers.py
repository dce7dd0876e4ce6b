"""Lists of numbers as people write them on a command line."""

from __future__ import annotations

import argparse
import math
from typing import Any

from ..errors import Reasons
from .options import number


def whole_numbers(text: str) -> list[int]:
    """``64,128,256``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 64,128,256") from None


def rates(text: str) -> list[float]:
    """``2^-8..2^-4`` (every power of two), or ``0.001,0.002,0.004``."""
    low, dots, high = text.partition("..")
    if not dots:
        return [number(part) for part in text.split(",")]
    first, last = number(low), number(high)
    if not 0 < first <= last < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} does not go from a lower rate > 0 to a higher one")
    steps = math.log2(last / first)
    if abs(steps - round(steps)) > 1e-9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of doublings; list the rates instead")
    return [first * 2.0**step for step in range(round(steps) + 1)]


def parse_lists(file: dict[str, Any], source: Any, **parsers: Any) -> None:
    """Read the lists among a YAML file's options, in place: text as on the command line, or a list of such numbers.

    Args:
        file: Option names and values.
        source: The file, for the errors.
        **parsers: By option name, how its text is read.

    Raises:
        Refused: With every list that cannot be read.
    """
    reasons = Reasons()
    for name, parse in parsers.items():
        if name in file:
            try:
                file[name] = _from_file(file[name], parse)
            except argparse.ArgumentTypeError as error:
                reasons.add("type", f"{source}: {name}", str(error))
    reasons.refuse_if_any()


def _from_file(value: Any, parse: Any) -> Any:
    if isinstance(value, str):
        return parse(value)
    return [parse(item)[0] if isinstance(item, str) else item for item in value] if isinstance(value, list) else [value]
