"""A finished or stopped run's newest checkpoint, exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
from mlx.utils import tree_unflatten

from ..lm.building import build
from ..lm.export import export
from ..lm.tokenizer import load_tokenizer
from .checkpoint import read_facts
from .folder import RunFolder


def export_run(run: str | Path, folder: str | Path, *, weights: Literal["x", "y"] = "x") -> Path:
    """Export a run's newest whole checkpoint for ``mlx_lm.load``; no optimizer state goes along.

    Args:
        run: A run's folder.
        folder: Where to write.
        weights: ``"x"``, the average, or ``"y"``, where gradients were taken.

    Returns:
        The folder written.

    Raises:
        Refused: If there is no run, or it has no checkpoint.
        CheckpointError: If none of its checkpoints is whole.
    """
    place = RunFolder(Path(run))
    identity = place.saved()["identity"]
    path = place.newest()
    facts = read_facts(path)
    model = build(identity["model_config"])
    arrays: Any = mx.load(str(path / f"{weights}.safetensors"))
    model.update(tree_unflatten(list(arrays.items())))
    tokenizer = load_tokenizer(facts["settings"]["tokenizer"])
    notes = {"sequence": weights, **facts}
    if facts["settings"].get("recipe"):
        notes["recipe"] = facts["settings"]["recipe"]
    return export(folder, model, identity["model_config"], tokenizer, notes=notes)
