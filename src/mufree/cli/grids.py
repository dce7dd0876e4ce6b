"""What a study's command is asked: the grid's own settings, and those of pretraining that its cells share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Set
from typing import Any

from ..errors import Reasons
from ..training.config import PretrainConfig, defaults, from_mapping
from .numbers import parse_lists
from .options import given_options, read_yaml

GROUPS = ("model", "data", "optimizer")
"""Of the settings of pretraining that cells share."""


def read_grid(
    options: argparse.Namespace,
    reasons: Reasons,
    *,
    preset: Mapping[str, Any],
    lists: Mapping[str, Any],
    own: tuple[str, ...],
    of_a_cell: Set[str],
    whose: str,
) -> tuple[dict[str, Any], PretrainConfig | None]:
    """The settings from the preset, the file over it, and the options over both.

    Args:
        options: What was given on the command line.
        reasons: Collects what is refused of the settings of pretraining.
        preset: The defaults of both kinds of settings.
        lists: How the text of each setting that is a list is read.
        own: Names of the grid's own settings.
        of_a_cell: Settings of pretraining that the grid sets for each cell.
        whose: What the grid is called, for the errors.

    Returns:
        The grid's own settings by name, unchecked, and the others; None if they were refused.

    Raises:
        Refused: If the file cannot be read.
    """
    file = dict(read_yaml(options.config, PretrainConfig)) if options.config else {}
    parse_lists(file, options.config, **lists)
    given = {name: getattr(options, name) for name in own if hasattr(options, name)}
    shared = given_options(options, PretrainConfig, groups=GROUPS, leave=of_a_cell)
    settings = {**preset, **file, **shared, **given}
    grid = {name: settings.pop(name) for name in own}
    for name in of_a_cell & settings.keys():
        reasons.add("unknown", name, f"is the {whose}'s here; leave it out, or set {', '.join(own)}")
        settings.pop(name)
    known = sorted({*own, *defaults()} - of_a_cell)
    for name in settings.keys() - defaults().keys():
        reasons.add_unknown(f"{options.config}: {name}", name, known, "option")
        settings.pop(name)
    return grid, reasons.attempt(from_mapping, settings, str(options.config or "options"))
