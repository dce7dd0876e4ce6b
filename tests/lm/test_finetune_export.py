"""A folder that a fine-tune really wrote, fused into its base: x and y, adapters and whole layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.tuner.datasets import CacheDataset, TextDataset
from mlx_lm.tuner.trainer import evaluate

from mufree.cli import run
from mufree.lm import finetune
from tiny_finetune import settings

FUSED = 1e-5  # float32: W + s·(A·B) in one product or in two, in losses of order 5


def loss_of(folder: Path, data: Path) -> float:
    """The validation loss of a model folder, by stock mlx-lm."""
    model, tokenizer = mlx_lm.load(str(folder))[:2]
    rows = [json.loads(line) for line in (data / "valid.jsonl").read_text().splitlines()]
    return evaluate(model, CacheDataset(TextDataset(rows, tokenizer)), 2, -1, 40)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_both_sequences_have_the_losses_of_the_run(
    kind: str, base: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After few updates y is the better one and kept; each export has the loss that was recorded at its sequence."""
    out = tmp_path / "out"
    rate = {"lora": 1e-3, "full": 1e-4}[kind]
    given = {"iters": 6, "learning_rate": rate, "warmup": 5, "fine_tune_type": kind, "lora_ratio": None}
    losses = finetune(settings(*base, out, **given)).losses
    assert losses["valid_loss_y"] < losses["valid_loss_x"] - 10 * FUSED
    for weights, name in (("x", "fused"), ("y", "fused-y")):
        assert run(["export", str(out), "--weights", weights]) == 0
        assert capsys.readouterr().out.strip() == str(out / name)
        assert loss_of(out / name, base[1]) == pytest.approx(losses[f"valid_loss_{weights}"], rel=FUSED)
        assert sorted(path.name for path in (out / name).glob("*.safetensors")) == ["model.safetensors"]
        notes = json.loads((out / name / "mufree.json").read_text())
        assert (notes["sequence"], notes["base"]) == (weights, str(base[0]))
    assert run(["export", str(out / "best"), "--out", str(tmp_path / "best")]) == 0
    kept = json.loads((out / "best" / "adapter_config.json").read_text())["mufree"]["losses"]["valid_loss_x"]
    assert loss_of(tmp_path / "best", base[1]) == pytest.approx(kept, rel=FUSED)
    names = mx.load(str(base[0] / "model.safetensors")).keys()
    assert mx.load(str(out / "fused" / "model.safetensors")).keys() == names


def test_a_folder_of_neither_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it would have to hold."""
    assert run(["export", str(tmp_path)]) == 2
    said = f"{tmp_path}: holds neither a run of mufree pretrain nor a fine-tune's adapters; give the folder of one"
    assert said in capsys.readouterr().err
