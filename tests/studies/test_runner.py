"""The runner: only what is missing is trained, in any number of processes, whatever was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from small_task import small_task

from mufree.studies.cells import Cell, grid
from mufree.studies.runner import Quiet, row_name, run_cells
from mufree.studies.store import Store
from mufree.studies.task import train_cell

CELLS = grid(widths=[8, 16], rates=[0.01, 0.02], seeds=[0], updates=3)


def without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("seconds", "made_by")} for row in rows]


class Heard(Quiet):
    """Counts."""

    def __init__(self) -> None:
        self.kept = self.trained = self.stopped = 0

    def start(self, cells: object, rows: Any) -> None:
        self.kept = len(rows)

    def row(self, row: object) -> None:
        self.trained += 1

    def stop(self) -> None:
        self.stopped += 1


def test_a_second_run_trains_nothing(tmp_path: Path) -> None:
    """And gives the same rows, in the order asked for; the random state is as before."""
    task, heard = small_task(), Heard()
    key = mx.array(mx.random.state[0])
    first = run_cells(Store(tmp_path, "transfer", task.settings), CELLS, lambda cell: train_cell(task, cell))
    second = run_cells(Store(tmp_path, "transfer", task.settings), CELLS, _never, heard)
    assert second == first
    assert [row_name(row) for row in first] == [cell.name for cell in CELLS]
    assert (heard.kept, heard.trained, heard.stopped) == (len(CELLS), 0, 1)
    assert mx.array_equal(mx.random.state[0], key)


def test_a_cell_depends_on_nothing_but_itself(tmp_path: Path) -> None:
    """Trained alone, or after others, it is the same to the last kept digit."""
    task = small_task()
    rows = run_cells(Store(tmp_path, "transfer", task.settings), CELLS, lambda cell: train_cell(task, cell))
    alone = {**CELLS[-1].as_dict(), **train_cell(task, CELLS[-1])}
    assert without_seconds([alone]) == without_seconds(rows[-1:])


def test_a_failure_in_the_middle_keeps_what_was_done(tmp_path: Path) -> None:
    """The watcher is told that it is over."""
    task, heard = small_task(), Heard()
    store = Store(tmp_path, "transfer", task.settings)

    def failing(cell: Cell) -> dict[str, Any]:
        if cell == CELLS[2]:
            raise RuntimeError("no power")
        return train_cell(task, cell)

    with pytest.raises(RuntimeError, match="no power"):
        run_cells(store, CELLS, failing, heard)
    assert len(store.rows(CELLS)) == 2
    assert heard.stopped == 1


def test_a_cell_that_diverges_is_kept_as_such(tmp_path: Path) -> None:
    """With the update at which it did, and no loss; it is not tried again."""
    task = small_task()
    cell = Cell(width=8, rate=1e13, updates=4)
    store = Store(tmp_path, "transfer", task.settings)
    row = run_cells(store, [cell], lambda one: train_cell(task, one))[0]
    assert row["losses"] == {"loss": None}
    assert 1 <= row["diverged"] <= 4
    assert run_cells(store, [cell], _never) == [row]


SCRIPT = """
import sys, time
sys.path.insert(0, {here!r})
from small_task import small_task
from mufree.studies.cells import grid
from mufree.studies.runner import run_cells
from mufree.studies.store import Store
from mufree.studies.task import train_cell
task = small_task()
cells = grid(widths=[8, 16], rates=[0.01, 0.02], seeds=[0], updates=3)
def slowly(cell):
    print(cell.name, flush=True)
    time.sleep({pause})
    return train_cell(task, cell)
run_cells(Store(sys.argv[1], "transfer", task.settings), cells, slowly)
"""


def started(folder: Path, pause: float) -> subprocess.Popen[str]:
    code = SCRIPT.format(here=str(Path(__file__).parent), pause=pause)
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)


def test_killed_in_the_middle_the_next_start_runs_only_what_is_missing(tmp_path: Path) -> None:
    """And the rows are those of a run that nobody killed."""
    folder = tmp_path / "killed"
    with started(folder, 0.3) as process:
        while len(list((folder / "cells").glob("*.json"))) < 2:
            time.sleep(0.02)
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "cells").glob("*.json")}
    assert 2 <= len(before) < len(CELLS)
    with started(folder, 0) as process:
        trained = process.communicate()[0].split()
    assert sorted([*trained, *(name.removesuffix(".json") for name in before)]) == sorted(c.name for c in CELLS)
    assert all((folder / "cells" / name).stat().st_mtime_ns == when for name, when in before.items())
    task = small_task()
    whole = run_cells(Store(tmp_path / "whole", "transfer", task.settings), CELLS, lambda cell: train_cell(task, cell))
    assert without_seconds(Store(folder, "transfer", task.settings).rows(CELLS)) == without_seconds(whole)


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    """Every cell is trained once, by one of them, and both end with all of them there."""
    with started(tmp_path / "s", 0.2) as one, started(tmp_path / "s", 0.2) as other:
        trained = one.communicate()[0].split() + other.communicate()[0].split()
        assert (one.returncode, other.returncode) == (0, 0)
    assert sorted(trained) == sorted(cell.name for cell in CELLS)
    made_by = json.loads((tmp_path / "s" / "cells" / f"{CELLS[0].name}.json").read_text())["made_by"]
    assert {"mlx", "device", "blas", "settings"} <= made_by.keys()


def _never(cell: Cell) -> dict[str, Any]:
    raise AssertionError(f"{cell.name} was trained again")


def test_another_process_s_cells_are_told_as_they_are_finished(tmp_path: Path) -> None:
    """Not when this one has gone through all of its own: what is left would be told as more than it is."""
    task, told = small_task(), []
    store, other = (Store(tmp_path, "transfer", task.settings) for _ in range(2))

    class Told(Quiet):
        def row(self, row: Any) -> None:
            told.append(row_name(row))

    with other.claim(CELLS[0]) as mine:
        assert mine

        def train(cell: Cell) -> Any:
            if cell == CELLS[2]:
                other.keep(CELLS[0], train_cell(task, CELLS[0]), {})
            return train_cell(task, cell)

        run_cells(store, CELLS[:4], train, Told())
    assert told == [CELLS[number].name for number in (1, 0, 2, 3)]


def test_ctrl_c_says_what_is_kept(tmp_path: Path) -> None:
    """How many of the cells asked for, where, and how to go on; the status and the words of the command say it too."""
    task, trained = small_task(), []

    def train(cell: Cell) -> Any:
        if trained:
            raise KeyboardInterrupt
        trained.append(cell)
        return train_cell(task, cell)

    with pytest.raises(KeyboardInterrupt) as caught:
        run_cells(Store(tmp_path, "transfer", task.settings), CELLS, train)
    assert str(caught.value) == f"stopped; 1 of 8 cells are kept in {tmp_path}, and the same command goes on from there"
