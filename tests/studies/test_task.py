"""One cell: which batches it sees, where it is evaluated, and which optimizer it gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from small_task import MLP, batches, small_task

from mufree import Refused
from mufree.studies.cells import Cell
from mufree.studies.language import cell_optimizer, language_task
from mufree.studies.task import train_cell
from mufree.training.config import PretrainConfig

CELL = Cell(width=16, rate=0.02, updates=5)
# A kept loss is rounded to six decimals.
ROUNDED = 6e-7


def test_each_seed_has_its_batches_and_every_width_the_same() -> None:
    """In the order of their numbers."""
    seen: list[tuple[int, int]] = []

    def batch(number: int, seed: int) -> Any:
        seen.append((number, seed))
        return batches(number)

    task = replace(small_task(), batch=batch)
    for width, seed in ((8, 0), (16, 0), (8, 1)):
        train_cell(task, Cell(width=width, rate=0.02, updates=2, seed=seed))
    assert seen == [(0, 0), (1, 0)] * 2 + [(0, 1), (1, 1)]


def test_the_loss_is_that_of_the_average() -> None:
    """At x on the fixed batches; at y it is another."""
    task = small_task()
    row = train_cell(task, CELL)
    trainer = task.start(CELL)
    curve = [trainer.advance() for _ in range(CELL.updates)]
    assert row["curve"] == pytest.approx(curve, abs=ROUNDED)
    at_x, at_y = (trainer.evaluate(task.evaluation["loss"], at=at) for at in ("x", "y"))
    assert row["losses"]["loss"] == pytest.approx(at_x, abs=ROUNDED)
    assert abs(at_x - at_y) > 10 * ROUNDED


def test_a_batch_may_be_one_array_or_several() -> None:
    """Evaluation weighs each batch by its rows."""
    task = small_task()
    trainer = task.start(CELL)
    small, large = ((x[:rows], y[:rows]) for rows, (x, y) in ((2, batches(0)), (16, batches(1))))
    alone = [trainer.evaluate([one]) for one in (small, large)]
    assert trainer.evaluate([small, large]) == pytest.approx((2 * alone[0] + 16 * alone[1]) / 18, rel=1e-6)


def test_the_cosine_ends_at_its_cell_s_horizon() -> None:
    """Warmup to the cell's rate, then down to nothing at the last update; schedule-free has no end."""
    config = PretrainConfig(warmup=2)
    model = MLP(16)
    for updates in (10, 20):
        made = cell_optimizer(config, replace(CELL, updates=updates, schedule="cosine"), model, None)
        rates = [float(made.plan and _rate(made, step)) for step in range(updates)]
        assert max(rates) == pytest.approx(CELL.rate)
        assert rates[updates - 1] < 0.06 * CELL.rate
        assert rates[updates // 2] > 0.3 * CELL.rate
    free = cell_optimizer(config, CELL, model, None)
    assert (free.plan.total_updates, free.plan.peak_lr, free.plan.warmup_updates) == (None, CELL.rate, 2)


def test_widths_that_the_heads_do_not_divide_are_refused_together(tmp_path: Path) -> None:
    """With what the data gives to complain about."""
    with pytest.raises(Refused) as refused:
        language_task(PretrainConfig(head_dim=16), [64, 72, 100])
    assert {reason.message.split()[0] for reason in refused.value.reasons} == {"72", "100"}
    with pytest.raises(Refused, match="does not exist"):
        language_task(PretrainConfig(data=str(tmp_path / "none")), [64])


def _rate(optimizer: Any, step: int) -> float:
    from mufree import build_lr_schedule

    schedule = build_lr_schedule(optimizer.plan)
    assert callable(schedule)
    return schedule(mx.array(step)).item()
