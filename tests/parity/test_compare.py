"""The comparison with PyTorch, small: its bounds hold, and a mistake on either side breaks them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

for package in ("torch", "schedulefree", "mup"):
    pytest.importorskip(package)

import torch  # noqa: E402

import compare  # noqa: E402
from comparison import language, recorded  # noqa: E402
from comparison.rows import Row, Scale  # noqa: E402
from comparison.sides import marks  # noqa: E402
from mufree.lm import build  # noqa: E402
from mufree.lm.configs import new_config  # noqa: E402
from torch_llama import Llama  # noqa: E402

LITTLE = Scale(seeds=1, updates=20, width=32, language_updates=2)
LOGITS = 5e-6  # of logits up to 4: some float32 roundings a layer; without the rotation they are off by 0.1


def found(problem: str, scale: Scale = LITTLE) -> list[Row]:
    told: list[str] = []
    module = importlib.import_module(f"comparison.{problem}")
    rows = list(module.rows(scale, told.append))
    assert len(told) == module.cases()
    return rows


@pytest.mark.parametrize("problem", compare.PROBLEMS)
def test_the_bounds_hold(problem: str) -> None:
    """Every problem, every case, in both precisions."""
    rows = found(problem)
    assert [(row.case, row.precision, row.what, row.ours) for row in rows if row.passed is False] == []
    assert sum(row.passed is True for row in rows) >= 4


@pytest.mark.parametrize("fault", [{"lr": 0.0025 * (1 + 1e-9)}, {"weight_decay": 0.1001}, {"warmup_steps": 101}])
def test_another_setting_breaks_the_float64_bound(fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that differs by a billionth is seen."""
    right = recorded.optimizer
    monkeypatch.setattr(recorded, "optimizer", lambda kind, settings, base: right(kind, settings | fault, base))
    monkeypatch.setattr(recorded, "CASES", dict([next(iter(recorded.CASES.items()))]))
    rows = [row for row in recorded.rows(LITTLE, str) if row.precision == "float64"]
    assert [row.passed for row in rows] == [False, False, False]


def test_the_language_model_is_mlx_lms() -> None:
    """The same logits from the same weights, with shared keys and values too."""
    config = new_config(
        "llama", width=64, layers=2, head_dim=16, vocab_size=50, max_length=64, fields={"num_key_value_heads": 2}
    )
    ours, theirs = build(config), Llama(config)
    theirs.load_state_dict({path: torch.tensor(np.array(a)) for path, a in weights_of(ours).items()})
    tokens = np.random.default_rng(0).integers(0, 50, (2, 24))
    difference = np.array(ours(mx.array(tokens))) - theirs(torch.tensor(tokens)).detach().numpy()
    assert np.abs(difference).max() < LOGITS


def weights_of(model: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def test_an_unscaled_head_breaks_the_loss_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's head must start m times as large as ours, since mup's readout divides by m."""
    monkeypatch.setattr(language.Task, "m", property(lambda _: 1.0))
    monkeypatch.setattr(language, "OPTIMIZERS", language.OPTIMIZERS[-1:])
    losses = [row for row in found("language") if "loss" in row.what]
    assert len(losses) == 3
    assert not any(row.passed for row in losses)


def test_the_script_prints_zero_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``python reference/compare.py lemma``: the README's line."""
    out = tmp_path / "lemma.json"
    assert compare.main(["lemma", "--json", str(out)]) == 0
    assert "4 of 4 bounds hold" in capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]
    assert [row["ours"] for row in rows if row["limit"] == 0] == [0.0] * 4
    assert all(row["ours"] > 1e-3 for row in rows if row["limit"] is None)


def test_a_broken_bound_is_status_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the plot and the table are there all the same."""
    curves = {"MLX": {1: 1e-7, 2: 2e-7}, "PyTorch": {1: 1e-7, 2: 1e-7}}
    row = Row(
        problem="MLP", case="it", precision="float32", what="x", updates=2, ours=2e-7, theirs=1e-7, by="ratio",
        limit=1.75, curves=curves,
    )  # fmt: skip
    monkeypatch.setattr(compare, "measure", lambda *_: [row])
    pytest.importorskip("matplotlib").use("Agg")
    assert compare.main(["mlp", "--plot", str(tmp_path / "plot.png")]) == 1
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_marks_end_at_the_last_update() -> None:
    """And begin at the first."""
    assert marks(100) == [1, 10, 22, 46, 100]
    assert marks(1) == [1]
