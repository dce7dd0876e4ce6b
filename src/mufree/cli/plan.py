"""``mufree plan``."""

from __future__ import annotations

import argparse

HELP = "plan an optimizer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None yet."""


def run(options: argparse.Namespace) -> int:
    """Nothing yet."""
    raise NotImplementedError(options)
