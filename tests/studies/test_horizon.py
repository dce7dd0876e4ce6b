"""Horizons: one schedule-free run looked at on its way, a tuned cosine for each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_task import small_task

from mufree import AdamWScheduleFree, Refused, build_optimizer, plan_optimizer
from mufree.studies.cells import Cell
from mufree.studies.horizon import Horizon, horizons_of, run_horizon
from mufree.studies.task import Task

UPDATES = 8
RATES = [2.0**power for power in range(-7, 0)]


def optimizer(cell: Cell, model: Any, scales: Any) -> Any:
    if cell.schedule == "schedule_free":
        return AdamWScheduleFree(cell.rate, warmup_steps=2, scales=scales)
    plan = plan_optimizer(optimizer="adamw_torch", lr=cell.rate, scheduler="cosine", total_updates=cell.updates)
    return build_optimizer(plan, model, scales=scales)


def task() -> Task:
    return replace(small_task(UPDATES), optimizer=optimizer, measured=horizons_of(UPDATES)[:-1])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Horizon, Path]:
    folder = tmp_path_factory.mktemp("horizon") / "h"
    return run_horizon(task(), width=8, rates=RATES, updates=UPDATES, seeds=2, folder=folder, loss="loss"), folder


def test_one_run_is_looked_at_on_its_way(ran: tuple[Horizon, Path]) -> None:
    """Schedule-free has runs of one length, the cosine of every one; the first seed has the whole grid."""
    rows = ran[0].rows
    assert {row["updates"] for row in rows if row["schedule"] == "schedule_free"} == {8}
    assert {row["updates"] for row in rows if row["schedule"] == "cosine"} == {2, 4, 6, 8}
    for schedule, horizon in (("schedule_free", 8), ("cosine", 2)):
        mine = [row for row in rows if (row["schedule"], row["updates"]) == (schedule, horizon)]
        assert sorted(row["rate"] for row in mine if row["seed"] == 0) == RATES


def test_what_is_measured_on_the_way_is_what_a_shorter_run_ends_with(ran: tuple[Horizon, Path]) -> None:
    """Looking changes nothing, and nothing depends on the end."""
    rate = RATES[3]
    short = run_horizon(
        replace(task(), measured=horizons_of(4)[:-1]),
        width=8, rates=[rate], updates=4, seeds=1, folder=ran[1].with_name("short"), loss="loss",
    )  # fmt: skip
    long_row = next(r for r in ran[0].rows if (r["schedule"], r["rate"], r["seed"]) == ("schedule_free", rate, 0))
    short_row = next(r for r in short.rows if r["schedule"] == "schedule_free")
    assert long_row["measured"]["4"] == short_row["losses"]
    assert long_row["curve"][:4] == short_row["curve"]


def test_the_other_seeds_are_trained_around_the_best_rate(ran: tuple[Horizon, Path]) -> None:
    """Until the mean's minimum has a neighbour with every seed on either side, or the grid ends."""
    for schedule in ("schedule_free", "cosine"):
        for horizon in ran[0].horizons:
            swept = ran[0].sweep(schedule, 8 if schedule == "schedule_free" else horizon)
            assert swept.interior or swept.best in (RATES[0], RATES[-1])


def test_schedule_free_keeps_one_rate(ran: tuple[Horizon, Path]) -> None:
    """The best at its end, at every horizon; the cosine's may change."""
    best = ran[0].best("schedule_free")
    assert len({best[h]["rate"] for h in ran[0].horizons}) == 1
    assert all(len(best[h]["losses"]) == 2 for h in ran[0].horizons)


def test_a_second_call_trains_nothing_and_the_file_is_the_study(ran: tuple[Horizon, Path], tmp_path: Path) -> None:
    """Same rows, same verdict."""
    never = replace(task(), make=None)  # type: ignore[arg-type]
    again = run_horizon(never, width=8, rates=RATES, updates=UPDATES, seeds=2, folder=ran[1], loss="loss")
    assert list(again.rows) == list(ran[0].rows)
    again.save(tmp_path / "h.json")
    assert Horizon.load(tmp_path / "h.json").verdict == ran[0].verdict


def row(
    schedule: str, rate: float, updates: int, loss: float, measured: dict[str, Any] | None = None
) -> dict[str, Any]:
    cell = Cell(width=64, rate=rate, updates=updates, schedule=schedule)  # type: ignore[arg-type]
    return {**cell.as_dict(), "losses": {"valid_loss": loss}, "measured": measured or {}}


def invented(ours: float, on_the_way: float, lowest: float = 1.2) -> Horizon:
    """Two horizons; the cosine ends at 1.5 and at 1.2."""
    measured = {"1": {"valid_loss": on_the_way}}
    rows = [row("schedule_free", rate, 2, ours + (rate != 0.2), measured) for rate in (0.1, 0.2, 0.4)]
    rows += [row("cosine", rate, 1, 1.5 + (rate != 0.2)) for rate in (0.1, 0.2, 0.4)]
    rows += [row("cosine", rate, 2, lowest + (rate != 0.2)) for rate in (0.1, 0.2, 0.4)]
    return Horizon(rows=rows, horizons=(1, 2))


def test_it_passes_only_below_the_cosine_at_every_horizon() -> None:
    """At one of two is not enough, and the numbers are in the sentence either way."""
    assert invented(1.1, 1.4).passed
    assert invented(1.1, 1.4).verdict.startswith("Passed")
    for lost in (invented(1.3, 1.4), invented(1.1, 1.6)):
        assert not lost.passed
        assert "against 1.5000 (rate 0.2) after 1" in lost.verdict


def test_a_minimum_on_the_edge_decides_nothing() -> None:
    """The sentence says whose."""
    found = invented(1.1, 1.4)
    edge = Horizon(
        rows=[r for r in found.rows if not (r["schedule"] == "cosine" and r["rate"] == 0.4)], horizons=(1, 2)
    )
    assert not edge.passed
    assert "edge for cosine at 1, cosine at 2" in edge.verdict


def test_a_task_that_measures_elsewhere_is_refused(tmp_path: Path) -> None:
    """Its rows would lack the horizons."""
    with pytest.raises(Refused, match=r"measures at \(\), not at \(2, 4, 6\)"):
        run_horizon(small_task(), width=8, rates=RATES, updates=8, seeds=1, folder=tmp_path / "h")
