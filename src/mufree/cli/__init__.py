"""The command line: one module a command."""

from __future__ import annotations

from collections.abc import Sequence


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    raise NotImplementedError(arguments)
