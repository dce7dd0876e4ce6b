"""The main job: plan, train, validate at x, save, go on, export."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree, CheckpointError, NonFiniteLoss, Refused
from mufree.training import pretrain
from mufree.training.checkpoint import checkpoints
from mufree.training.loop import Trainer
from mufree.training.prepare import prepare
from mufree.training.report import read_metrics
from training_settings import Heard, tiny


def final_weights(folder: Path, update: int) -> dict[str, bytes]:
    """Every array of a checkpoint, as bytes."""
    place = folder / "checkpoints" / f"{update:08}"
    return {name: (place / f"{name}.safetensors").read_bytes() for name in ("x", "y", "optimizer", "random")}


def test_a_run_leaves_metrics_checkpoint_and_export(tmp_path: Path) -> None:
    """Losses at x before the first update, as it goes, and at x and y at the end; the result says where things are."""
    run = pretrain(tiny(tmp_path / "run", eval_every=4))
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["update"] for line in lines if "valid_loss_x" in line] == [0, 4, 6]
    assert [line["update"] for line in lines if "valid_loss_y" in line] == [6]
    trained = [line for line in lines if "loss" in line]
    assert [line["update"] for line in trained] == [2, 4, 6]
    assert [line["tokens"] for line in trained] == [64, 128, 192]
    assert trained[0]["lr"] == pytest.approx(2.0**-6 * 2 / 3)
    assert trained[-1]["lr"] == 2.0**-6
    assert run.update == 6
    assert run.signal is None
    assert run.losses == {key: value for line in lines for key, value in line.items() if "loss" in key}
    assert (run.export / "model.safetensors").is_file()


@pytest.mark.parametrize("stops", [(2,), (1, 3, 5)])
def test_a_run_that_goes_on_is_the_run_that_never_stopped(tmp_path: Path, stops: tuple[int, ...]) -> None:
    """Stopped and resumed, even beyond its first length, every bit is that of one uninterrupted run."""
    pretrain(tiny(tmp_path / "straight", accumulation=3))
    for number, updates in enumerate([*stops, 6]):
        pretrain(tiny(tmp_path / "pieces", accumulation=3, updates=updates), resume=number > 0)
    assert final_weights(tmp_path / "pieces", 6) == final_weights(tmp_path / "straight", 6)
    told = [
        [line["loss"] for line in read_metrics(tmp_path / name / "metrics.jsonl") if "loss" in line]
        for name in ("pieces", "straight")
    ]
    assert told[0][-1] == told[1][-1]


def test_a_signal_finishes_the_update_saves_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is noted, the run stops after that update with everything on the disk, and can go on."""
    advance = Trainer.advance

    def interrupted(self: Trainer) -> float:
        if self.position.update == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", interrupted)
    run = pretrain(tiny(tmp_path / "run"))
    assert (run.update, run.signal) == (4, signal.SIGINT)
    assert [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")] == ["00000004"]
    assert json.loads((run.export / "mufree.json").read_text())["position"]["update"] == 4
    monkeypatch.undo()
    pretrain(tiny(tmp_path / "run"), resume=True)
    pretrain(tiny(tmp_path / "straight"))
    assert final_weights(tmp_path / "run", 6) == final_weights(tmp_path / "straight", 6)


def test_at_the_base_width_nothing_is_scaled(tmp_path: Path) -> None:
    """Every scale is exactly 1, and 20 updates are those of an optimizer without scales, bit for bit."""
    config = tiny(tmp_path / "run", width=16, accumulation=2)
    weights = []
    for scaled in (True, False):
        prepared = prepare(config)
        for scale in prepared.scales.values():
            assert (scale.init, scale.lr, scale.eps, scale.weight_decay, scale.multiplier) == (1, 1, 1, 1, 1)
        optimizer = prepared.optimizer
        if not scaled:
            plan = prepared.plan
            optimizer = AdamWScheduleFree(
                plan.peak_lr, plan.betas, plan.eps, plan.weight_decay, warmup_steps=plan.warmup_updates
            )
        trainer = Trainer(
            prepared.model, optimizer, lambda n, t=prepared.train: t.shuffled(n, 2, 0), accumulation=config.accumulation
        )
        for _ in range(20):
            trainer.advance()
        weights.append(dict(tree_flatten(prepared.model.parameters())))
    assert all(mx.array_equal(value, weights[1][path]) for path, value in weights[0].items())


def test_scales_matter_at_another_width(tmp_path: Path) -> None:
    """The control of the test above: at twice the base width hidden tensors have half the rate and twice the decay."""
    scales = prepare(tiny(tmp_path / "run")).scales
    hidden = scales["model.layers.0.mlp.up_proj.weight"]
    assert (hidden.kind, hidden.lr, hidden.weight_decay) == ("hidden", 0.5, 2.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"width": 48}, "width"),
        ({"lr": 0.5}, "lr"),
        ({"seed": 1}, "seed"),
        ({"model": {"rope_theta": 500.0}}, "model"),
        ({"batch_size": 3}, "batch_size"),
    ],
)
def test_another_run_cannot_be_gone_on_with(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    """What would change an update contradicts the saved run, by name, and nothing is touched."""
    pretrain(tiny(tmp_path / "run", updates=2))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    with pytest.raises(CheckpointError) as caught:
        pretrain(tiny(tmp_path / "run", **change), resume=True)
    assert field in [reason.field for reason in caught.value.reasons]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_a_changed_text_cannot_be_gone_on_with(tmp_path: Path) -> None:
    """The data's tokens are part of what a run is."""
    text = tmp_path / "text.txt"
    text.write_text("All work and no play. " * 100)
    pretrain(tiny(tmp_path / "run", updates=2, data=str(text)))
    text.write_text("All work and no pray. " * 100)
    with pytest.raises(CheckpointError) as caught:
        pretrain(tiny(tmp_path / "run", data=str(text)), resume=True)
    assert [reason.field for reason in caught.value.reasons] == ["train_tokens", "valid_tokens"]


def test_an_occupied_folder_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """A folder with a run asks for --resume, one with something else for another folder; a free one is made."""
    pretrain(tiny(tmp_path / "run", updates=1))
    with pytest.raises(Refused, match="go on with --resume"):
        pretrain(tiny(tmp_path / "run"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(Refused, match="holds no run"):
        pretrain(tiny(tmp_path / "mine"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    """With its newest checkpoint bit-flipped a run goes on from the one before and ends the same; it says so."""
    config = tiny(tmp_path / "run", save_every=2, updates=4)
    pretrain(config)
    broken = tmp_path / "run" / "checkpoints" / "00000004" / "optimizer.safetensors"
    content = bytearray(broken.read_bytes())
    content[-5] ^= 1
    broken.write_bytes(bytes(content))
    heard = Heard()
    pretrain(config, resume=True, report=heard)
    assert any("passed over a checkpoint" in text and "optimizer.safetensors" in text for text in heard.notes)
    pretrain(tiny(tmp_path / "straight", updates=4))
    assert final_weights(tmp_path / "run", 4) == final_weights(tmp_path / "straight", 4)


def test_a_loss_that_blows_up_names_the_update_and_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run stops, saves nothing more, and says what is left."""
    advance = Trainer.advance

    def diverged(self: Trainer) -> float:
        if self.position.update == 3:
            raise NonFiniteLoss("the loss of update 4 is nan")
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", diverged)
    with pytest.raises(NonFiniteLoss, match=r"update 4 is nan; the last checkpoint is .*00000002"):
        pretrain(tiny(tmp_path / "run", save_every=2))
    assert [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")] == ["00000002"]


def test_tokens_and_time_are_limits_too(tmp_path: Path) -> None:
    """100 tokens at 32 an update are 3 updates; no time left is none."""
    assert pretrain(tiny(tmp_path / "tokens", updates=None, tokens=100)).update == 3
    assert pretrain(tiny(tmp_path / "time", updates=None, max_time=1e-9)).update == 0
