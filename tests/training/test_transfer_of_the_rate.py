"""What the whole is for: a rate tuned at the base width trains a wider model better."""

from __future__ import annotations

from pathlib import Path

import pytest

from mufree.training import pretrain
from mufree.training.report import read_metrics
from training_settings import tiny


@pytest.mark.slow
def test_the_loss_falls_with_width_and_the_average_is_the_better_point(tmp_path: Path) -> None:
    """Rate 2^-6, base 64, widths 64, 128 and 256: the validation loss at x falls, and each is below that at y."""
    losses = []
    for width in (64, 128, 256):
        settings = {"width": width, "base_width": 64, "layers": 1, "head_dim": 16, "seq_length": 32, "batch_size": 16}
        run = pretrain(tiny(tmp_path / f"{width}", **settings, warmup=20, updates=120, eval_batches=32, lr=2.0**-6))
        last = {k: v for line in read_metrics(run.folder / "metrics.jsonl") for k, v in line.items() if "valid" in k}
        assert last["valid_loss_x"] < last["valid_loss_y"]
        losses.append(last["valid_loss_x"])
    assert losses[0] > losses[1] > losses[2]
