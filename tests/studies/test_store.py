"""A study's folder: whole cells, noticed changes, claims that die with their process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mufree import Refused
from mufree.studies.cells import Cell, check_grid, grid
from mufree.studies.store import Store

CELL = Cell(width=64, rate=2.0**-6, updates=3)


def test_a_kept_cell_is_read_back_with_what_made_it(tmp_path: Path) -> None:
    """By another process with the same settings; the file says what produced it."""
    Store(tmp_path / "s", "transfer", {"a": (1, 2)}).keep(CELL, {"losses": {"loss": 1.5}}, {"mlx": "0"})
    again = Store(tmp_path / "s", "transfer", {"a": [1, 2]})
    row = again.row(CELL)
    assert row is not None
    made_by = row.pop("made_by")
    assert row == {**CELL.as_dict(), "losses": {"loss": 1.5}}
    assert made_by["mlx"] == "0"
    assert len(made_by["settings"]) == 16


def test_another_study_or_another_setting_is_refused(tmp_path: Path) -> None:
    """Each difference by its name."""
    Store(tmp_path, "transfer", {"beta1": 0.9, "warmup": 20})
    with pytest.raises(Refused, match="holds a transfer study, not horizon"):
        Store(tmp_path, "horizon", {"beta1": 0.9, "warmup": 20})
    with pytest.raises(Refused) as refused:
        Store(tmp_path, "transfer", {"beta1": 0.8, "warmup": 10})
    assert [reason.field for reason in refused.value.reasons] == ["beta1", "warmup"]


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    """Nothing is written into it; a file is no folder."""
    (tmp_path / "note.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "note.txt"):
        with pytest.raises(Refused, match="holds no study"):
            Store(place, "transfer", {})
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"cell": {}}'])
def test_a_damaged_cell_is_named(tmp_path: Path, content: str) -> None:
    """With the remedy, and never taken for a result."""
    store = Store(tmp_path, "transfer", {})
    (tmp_path / "cells" / f"{CELL.name}.json").write_text(content)
    with pytest.raises(Refused, match=f"{CELL.name}.json: is no finished cell; remove"):
        store.row(CELL)


def test_a_cell_of_other_settings_is_noticed(tmp_path: Path) -> None:
    """One that was copied in from another study."""
    Store(tmp_path / "a", "transfer", {"beta1": 0.9}).keep(CELL, {}, {})
    store = Store(tmp_path / "b", "transfer", {"beta1": 0.8})
    name = f"{CELL.name}.json"
    (tmp_path / "b" / "cells" / name).write_bytes((tmp_path / "a" / "cells" / name).read_bytes())
    with pytest.raises(Refused, match="made with other settings"):
        store.row(CELL)


def test_a_claim_is_one_process_s_and_ends_with_it(tmp_path: Path) -> None:
    """Another process does not get it while it is held, and does once the holder was killed."""
    store = Store(tmp_path, "transfer", {})
    code = (
        "import sys, time; from mufree.studies.store import Store; from mufree.studies.cells import Cell\n"
        f"with Store({str(tmp_path)!r}, 'transfer', {{}}).claim(Cell(width=64, rate=2.0**-6, updates=3)) as mine:\n"
        "    print(mine, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with store.claim(CELL) as mine:
            assert not mine
        holder.kill()
        holder.wait()
    with store.claim(CELL) as mine:
        assert mine
        store.keep(CELL, {}, {})
    with store.claim(CELL) as mine:
        assert not mine, "a finished cell is not claimed again"


def test_cells_have_names_of_their_own() -> None:
    """Every field is in the name."""
    fields = {"width": 128, "rate": 0.5, "updates": 9, "seed": 1, "parametrisation": "sp", "schedule": "cosine"}
    names = {CELL.name} | {Cell(**{**CELL.as_dict(), name: value}).name for name, value in fields.items()}
    assert len(names) == 1 + len(fields)


def test_the_order_answers_soonest() -> None:
    """One seed before the next, narrow before wide, the middle rate before the outer ones."""
    cells = grid(widths=[128, 64], rates=[0.25, 0.5, 1.0], seeds=range(2), updates=1)
    assert [cell.seed for cell in cells] == [0] * 12 + [1] * 12
    assert [cell.width for cell in cells[:12]] == [64] * 6 + [128] * 6
    assert [cell.rate for cell in cells[:2]] == [0.5, 0.5]


def test_a_grid_that_cannot_be_trained_is_refused_with_every_reason() -> None:
    """All problems at once."""
    with pytest.raises(Refused) as refused:
        check_grid(widths=[64, 64, True], rates=[0.0, float("nan")], seeds=0, updates=1.5)  # type: ignore[arg-type]
    assert [r.field for r in refused.value.reasons] == ["widths"] * 3 + ["rates"] * 2 + ["seeds", "updates"]
    with pytest.raises(Refused, match="none"):
        check_grid(widths=[], rates=[0.1], seeds=1, updates=1)
