"""The benchmark script is one command, whose rows have the ratio first."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    assert "kernels, optimizers" in " ".join(done.stdout.split())
    assert "--quick" in done.stdout
