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


def is_renamed(checkpoint: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's name is not that of the update, or of a fine-tune's micro-batch, that it holds."""
    made = written_as(facts)
    return made is not None and made != int(checkpoint.name)


def written_as(facts: Mapping[str, Any]) -> int | None:
    """The number that a checkpoint was named by; None where its facts do not say."""
    position = facts.get("position")
    return position.get("update", position.get("iteration")) if isinstance(position, Mapping) else None


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

    Later ones were passed over for damage when the run went on from before them. One that is whole but was renamed is
    left where it is, and no other goes for it.
    """
    found = [path for path in checkpoints(newest.parent) if not is_renamed(path, _facts(path))]
    place = found.index(newest) + 1
    kept = {*found[max(0, place - keep) : place], best(found[:place], _facts(newest).get("run"))}
    for path in found:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)
