"""Which checkpoints of a run are kept: the last ones, and the best."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from .checkpoint import checkpoints, read_facts


def validated_loss(checkpoint: Path) -> float | None:
    """The validation loss at ``x`` of the very update that a checkpoint holds; None if it was not measured there."""
    try:
        facts = read_facts(checkpoint)
        if facts["validated"] != facts["position"]["update"]:
            return None
        return float(facts["losses"]["valid_loss_x"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # damaged, or another's


def best(found: Sequence[Path], run: str | None = None) -> Path | None:
    """The checkpoint with the lowest validation loss at ``x``, the earliest of equals; with ``run``, of that run's."""
    own = [path for path in found if run is None or _run(path) in (run, None)]
    losses = [(loss, path) for path in own if (loss := validated_loss(path)) is not None]
    return min(losses, key=lambda one: one[0])[1] if losses else None


def _run(checkpoint: Path) -> str | None:
    """The run that a checkpoint names as its own, if it names one."""
    try:
        return read_facts(checkpoint).get("run")
    except (OSError, ValueError, TypeError):
        return None


def prune(newest: Path, keep: int) -> None:
    """Remove all checkpoints beside ``newest`` but the last ``keep`` up to it, and the best up to it.

    Later ones were passed over for damage when the run went on from before them.
    """
    found = checkpoints(newest.parent)
    place = found.index(newest) + 1
    kept = {*found[max(0, place - keep) : place], best(found[:place], _run(newest))}
    for path in found:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
