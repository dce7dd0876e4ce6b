"""The losses of a study's first updates, kept beside its cells: what no source and no hash shows, a loss does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx
from mlx.utils import tree_flatten

from ..errors import NonFiniteLoss, refuse
from ..files import read_json, write_json
from ..random_state import random_state_kept
from .cells import Cell
from .store import Store
from .task import Task

UPDATES = 3
"""Of one cheap cell: the third loss has seen the batches, the model, the optimizer and its decay."""
TOLERANCE, HALF_TOLERANCE = 1e-3, 1e-2
"""Relative difference that another machine or version may make in float32, and where weights are in half precision:
orders of summation differ in the last bits, and a first step of Adam turns with the sign of a gradient near zero."""


def check_fingerprint(store: Store, task: Task, cells: Sequence[Cell]) -> None:
    """Train the first updates of one cell again and compare their losses; keep them where there are none.

    Args:
        store: The study's folder, whose settings have been compared.
        task: What is trained.
        cells: The cells that are asked for: of the narrowest, the one of the first rate and seed is taken.

    Raises:
        Refused: If the losses are others than those that the folder was begun with.
    """
    path = store.folder / "fingerprint.json"
    try:
        kept = read_json(path)
        cell, before = Cell(**kept["cell"]), [float(loss) for loss in kept["losses"]]
    except FileNotFoundError:
        cell = min(cells, key=lambda cell: (cell.width, cell.seed))
        write_json(path, {"cell": cell.as_dict(), "losses": first_losses(task, cell)[0]})
        return
    except (ValueError, KeyError, TypeError):
        refuse("damaged", str(path), "is no fingerprint of a study; give another folder")
    now, tolerance = first_losses(task, cell)
    if len(now) != len(before) or any(
        not math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance**2) for a, b in zip(now, before, strict=True)
    ):
        refuse(
            "contradiction",
            "out",
            f"the first updates of a model of width {cell.width} have losses {_listed(now)}, and had {_listed(before)} "
            f"when the study in {store.folder} was begun (allowed: {tolerance:g} of each), so its cells are of another "
            "model, optimizer, loss or batches; give another folder",
        )


def first_losses(task: Task, cell: Cell) -> tuple[list[float], float]:
    """The losses of a cell's first updates, up to one that is no number, and how far another machine's may be off."""
    losses: list[float] = []
    with random_state_kept():
        trainer = task.start(cell)
        half = any(array.dtype in (mx.float16, mx.bfloat16) for _, array in tree_flatten(trainer.model.parameters()))
        try:
            for _ in range(UPDATES):
                losses.append(trainer.advance())
        except NonFiniteLoss:
            pass
    return losses, HALF_TOLERANCE if half else TOLERANCE


def _listed(losses: Sequence[float]) -> str:
    return ", ".join(f"{loss:.6g}" for loss in losses)
