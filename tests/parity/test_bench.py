"""The benchmark script is one command, whose rows have the ratio first."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

import bench
import training_sides
from benches import start
from benches.harness import Options, Row

FIRST_LOSS = 0.5  # nats around log(257), of a fresh model on random bytes
BENCH = Path(__file__).parents[2] / "reference" / "bench.py"


def test_it_runs_and_writes_json(tmp_path: Path) -> None:
    """A row of each group, small."""
    for group, only, limit in (("kernels", "float32, holds x, scales", 1), ("optimizers", "state arrays", 1)):
        out = tmp_path / f"{group}.json"
        command = [sys.executable, str(BENCH), group, "--quick", "--only", only, "--json", str(out)]
        assert subprocess.run(command, capture_output=True).returncode == 0
        result = json.loads(out.read_text())
        (row,) = result["rows"]
        assert list(row)[:2] == ["name", "ratio"]
        assert row["ratio"] == row["limit"] == limit
        assert row["passed"]
        assert result["machine"]["mlx"]


def test_help_names_the_groups() -> None:
    """And nothing is measured."""
    done = subprocess.run([sys.executable, str(BENCH), "--help"], capture_output=True, text=True, check=True)
    assert "kernels, optimizers, start, steps" in " ".join(done.stdout.split())
    assert "--quick" in done.stdout


def test_a_whole_step_and_its_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the default model; the schedule-free state is as large as AdamW's."""
    out = tmp_path / "steps.json"
    assert bench.main(["steps", "--quick", "--only", "peak memory", "--json", str(out)]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["unit"] == "MB"
    assert 0.9 < row["ratio"] < 1.1


@pytest.mark.parametrize("side", training_sides.SIDES)
def test_every_side_trains_the_same_task(side: str) -> None:
    """A fresh model guesses; three steps on one batch learn."""
    if "PyTorch" in side:
        if training_sides.torch_missing("cpu"):
            pytest.skip("no PyTorch")
        importlib.import_module("torch").set_num_threads(1)
    step = training_sides.SIDES[side]("cpu")
    losses = [step() for _ in range(3)]
    assert abs(losses[0] - math.log(training_sides.VOCABULARY)) < FIRST_LOSS
    assert losses[2] < losses[1] < losses[0]


def test_starts_are_measured_by_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh process each, ours and theirs in turn; the first pair does not count."""
    started: list[str] = []
    monkeypatch.setattr(start, "_process", lambda side, _: lambda: started.append(side))
    (row,) = start.rows(Options(millions=1, rounds=2, only="MLX AdamW"))
    assert row.name == "first update / MLX AdamW"
    assert started == ["mufree", "MLX AdamW"] * 3


def test_a_device_that_is_not_here_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With what there is instead."""
    absent = [name for name in ("metal", "cuda") if not getattr(mx, name).is_available()]
    assert absent
    with pytest.raises(SystemExit) as stopped:
        bench.main(["--device", absent[0]])
    assert stopped.value.code == 2
    assert f"no {absent[0]} on this machine; it has cpu" in capsys.readouterr().err


@pytest.mark.parametrize(("over", "passed"), [(44, True), (400_000, False)])
def test_a_limit_of_sizes_leaves_room_for_counters_alone(over: int, passed: bool) -> None:
    """A few scalars beside hundreds of megabytes, not a thousandth."""
    assert Row(name="memory", ours=4e8 + over, theirs=4e8, unit="MB", limit=1.0).passed is passed
