"""Runs, exported: a model with its card and the facts of its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from ..errors import refuse
from ..lm.building import build
from ..lm.card import model_card
from ..lm.export import check_replaceable, export, read_notes
from ..lm.tokenizer import load_tokenizer, tokenizer_hash
from .checkpoint import read_facts
from .data import EMBEDDED
from .folder import RunFolder


def export_run(
    run: str | Path,
    folder: str | Path,
    *,
    weights: Literal["x", "y"] = "x",
    best: bool = False,
    say: Callable[[str], object] | None = None,
) -> Path:
    """Export a run's newest whole checkpoint for ``mlx_lm.load``; no optimizer state goes along.

    Args:
        run: A run's folder.
        folder: Where to write.
        weights: ``"x"``, the average, or ``"y"``, where gradients were taken.
        best: Take the checkpoint with the lowest validation loss at ``x`` instead, where one was measured.
        say: Hears a sentence for each checkpoint that was passed over.

    Returns:
        The folder written.

    Raises:
        Refused: If there is no run, it has no checkpoint, or ``folder`` holds a later update of it than is whole.
        CheckpointError: If none of its checkpoints is whole.
    """
    place, folder = RunFolder(Path(run)), Path(folder)
    identity = place.saved()["identity"]
    path = place.newest(best=best, say=say)
    check_replaceable(folder, (place.path,))
    facts = read_facts(path)
    if not best:
        _check_no_later(folder, facts)
    model = build(identity["model_config"])
    arrays: Any = mx.load(str(path / f"{weights}.safetensors"))
    model.update(tree_unflatten(list(arrays.items())))
    tokenizer = load_tokenizer(place.saved()["settings"]["tokenizer"])
    if tokenizer_hash(tokenizer) != identity["tokenizer"]:
        where = facts["settings"]["tokenizer"]
        refuse("contradiction", "tokenizer", f"{where} is no longer the one that the run in {run} was trained with")
    return export_model(folder, model, identity["model_config"], tokenizer, facts, weights=weights)


def _check_no_later(folder: Path, facts: Mapping[str, Any]) -> None:
    """Refuse to replace an export of the same run by an earlier update of it, the later one being damaged."""
    there = read_notes(folder)
    try:
        later = there["position"]["update"] > facts["position"]["update"] and there["run"] == facts["run"]
    except (KeyError, TypeError):
        return
    if later:
        message = (
            f"{folder} holds update {there['position']['update']} of this run, later than update "
            f"{facts['position']['update']}, the newest that is whole; give another folder"
        )
        refuse("occupied", "export", message)


def export_model(
    folder: Path,
    model: Any,
    model_config: Mapping[str, Any],
    tokenizer: Any,
    facts: Mapping[str, Any],
    *,
    weights: Literal["x", "y"],
) -> Path:
    """Export what a model holds now, with its card and the facts of its checkpoint.

    Args:
        folder: Where to write.
        model: Holds the weights to export.
        model_config: Its config.
        tokenizer: A transformers tokenizer.
        facts: As in a checkpoint: position, losses, settings, plan.
        weights: Which sequence the model holds.
    """
    parameters = sum(array.size for _, array in tree_flatten(model.parameters()))
    card = model_card(_card(facts, parameters, weights))
    recipe = facts["settings"].get("recipe")
    notes = {"sequence": weights, **facts, **({"recipe": recipe} if recipe else {})}
    return export(folder, model, model_config, tokenizer, notes=notes, card=card)


def _card(facts: Mapping[str, Any], parameters: int, weights: Literal["x", "y"]) -> dict[str, Any]:
    settings, position, loss = facts["settings"], facts["position"], facts["losses"].get(f"valid_loss_{weights}")
    measured = facts.get("validated", position["update"])
    when = "" if measured == position["update"] else f" (after {measured} updates)"
    return {
        "name": f"{settings['model_type']}, width {settings['width']}",
        "model_type": settings["model_type"],
        "parameters": parameters,
        "width": settings["width"],
        "layers": settings["layers"],
        "optimizer": facts["plan"]["optimizer"],
        "sequence": {"x": "x, the schedule-free average", "y": "y, where gradients were taken"}[weights],
        "updates": position["update"],
        "tokens": position["tokens"],
        "loss": "not measured" if loss is None else f"{loss:.4f}{when}",
        "data": settings["data"] or EMBEDDED,
        "base_width": settings["base_width"],
        "multiplier": settings["width"] / settings["base_width"],
        "lr": settings["lr"],
    }
