"""Which checkpoints of a run are kept: the last ones, and the best."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .checkpoint import checkpoints, read_facts


def validated_loss(checkpoint: Path) -> float | None:
    """The validation loss at ``x`` of the very update that a checkpoint holds; None if it was not measured there."""
    return _loss(_facts(checkpoint))


def best(found: Sequence[Path], run: str | None = None) -> Path | None:
    """The checkpoint with the lowest validation loss at ``x``, the earliest of equals; with ``run``, of that run's.

    One that names no run is anybody's.
    """
    facts = {path: _facts(path) for path in found}
    own = [path for path in found if run is None or facts[path].get("run") in (run, None)]
    losses = [(loss, path) for path in own if (loss := _loss(facts[path])) is not None]
    return min(losses, key=lambda one: one[0])[1] if losses else None


def _facts(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's facts; none of one that is damaged, or another's."""
    try:
        return read_facts(checkpoint)
    except (OSError, ValueError, TypeError):
        return {}


def _loss(facts: Mapping[str, Any]) -> float | None:
    try:
        measured = facts["validated"] == facts["position"]["update"]
        return float(facts["losses"]["valid_loss_x"]) if measured else None
    except (ValueError, KeyError, TypeError):
        return None


def prune(newest: Path, keep: int) -> None:
    """Remove all checkpoints beside ``newest`` but the last ``keep`` up to it, and the best up to it.

    Later ones were passed over for damage when the run went on from before them.
    """
    found = checkpoints(newest.parent)
    place = found.index(newest) + 1
    kept = {*found[max(0, place - keep) : place], best(found[:place], _facts(newest).get("run"))}
    for path in found:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
