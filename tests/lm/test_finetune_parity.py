"""Settings that ``mlx_lm.lora`` accepts give here what they give there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx_lm.lora
import numpy as np
import pytest
from mlx_lm.models import llama

from mufree.lm import finetune
from mufree.training.report import read_metrics
from tiny_finetune import make_data, settings

# What is promised. The same kernels run on the same numbers, so on one machine the losses are equal.
LOSSES = 1e-5
CONFIG = {
    "adam": {"betas": [0.8, 0.99]},
    "sgd": {"momentum": 0.9},
}
NAMES = ("adam", "adamw", "muon", "sgd", "adafactor")
COSINE = {"name": "cosine_decay", "warmup": 3, "warmup_init": 1e-6, "arguments": [1e-2, 8]}


class Heard:
    """mlx-lm's reports as they come."""

    def __init__(self) -> None:
        self.train: list[float] = []
        self.rates: list[float] = []
        self.valid: list[tuple[int, float]] = []

    def on_train_loss_report(self, told: dict[str, Any]) -> None:
        self.train.append(told["train_loss"])
        self.rates.append(told["learning_rate"])

    def on_val_loss_report(self, told: dict[str, Any]) -> None:
        self.valid.append((told["iteration"], told["val_loss"]))


def theirs(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Heard:
    """A run of ``mlx_lm.lora`` itself, which leaves the layers' class patched after gradient checkpoints."""
    heard = Heard()
    with monkeypatch.context() as patch:
        patch.setattr(llama.TransformerBlock, "__call__", llama.TransformerBlock.__call__)
        patch.setattr(mlx_lm.lora, "get_reporting_callbacks", lambda *_, **__: heard)
        mlx_lm.lora.run(SimpleNamespace(**{**mlx_lm.lora.CONFIG_DEFAULTS, **given}))
    return heard


def compare(given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Run both; every training and validation loss and rate agree, and so do the weights. Returns our metrics."""
    heard = theirs({**given, "adapter_path": str(tmp_path / "theirs")}, monkeypatch)
    run = finetune({**given, "adapter_path": str(tmp_path / "ours")})
    lines = read_metrics(tmp_path / "ours" / "metrics.jsonl")
    assert len(heard.train) == given["iters"]
    ours = [line for line in lines if "loss" in line]
    assert np.abs(np.array([line["loss"] for line in ours]) - heard.train).max() <= LOSSES
    assert [line["lr"] for line in ours] == heard.rates
    valid = [(line["iteration"], line["valid_loss"]) for line in lines if "valid_loss" in line][:-1]
    assert [number for number, _ in valid] == [number for number, _ in heard.valid]
    assert np.abs(np.array([loss for _, loss in valid]) - [loss for _, loss in heard.valid]).max() <= LOSSES
    wanted, got = (mx.load(str(tmp_path / who / "adapters.safetensors")) for who in ("theirs", "ours"))
    assert wanted.keys() == got.keys()
    assert max(mx.abs(wanted[path] - got[path]).max().item() for path in wanted) <= LOSSES
    assert run.update == given["iters"] // given["grad_accumulation_steps"]
    return lines


@pytest.mark.parametrize("name", NAMES)
def test_mlx_lms_optimizers_are_mlx_lms(name: str, base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty iterations into the second epoch, with dropout, accumulation and random validation subsets."""
    given = settings(*base, tmp_path, optimizer=name, learning_rate=3e-3, iters=20, steps_per_report=1, val_batches=2)
    lines = compare({**given, "grad_accumulation_steps": 2}, tmp_path, monkeypatch)
    assert lines[-1]["valid_loss"] != lines[0]["valid_loss"]


def test_settings_and_schedule_keep_their_meaning(base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``optimizer_config`` and ``lr_schedule`` are read as mlx-lm reads them; the schedule alone means its adam."""
    for number, name in enumerate(CONFIG):
        given = settings(*base, tmp_path, optimizer=name, optimizer_config=CONFIG, iters=4, steps_per_report=1)
        given |= {"learning_rate": 3e-3, "grad_accumulation_steps": 1, "val_batches": -1}
        compare(given, tmp_path / str(number), monkeypatch)
    given = settings(*base, tmp_path, lr_schedule=COSINE, iters=12, steps_per_report=1, grad_accumulation_steps=1)
    mlx_lms = {**given, "optimizer": "adam"}
    heard = theirs({**mlx_lms, "adapter_path": str(tmp_path / "theirs")}, monkeypatch)
    finetune({**given, "adapter_path": str(tmp_path / "ours")})
    ours = [line["loss"] for line in read_metrics(tmp_path / "ours" / "metrics.jsonl") if "loss" in line]
    assert np.abs(np.array(ours) - heard.train).max() <= LOSSES


@pytest.mark.parametrize(
    "changes",
    [
        {"fine_tune_type": "dora", "num_layers": 1},
        {"fine_tune_type": "full", "num_layers": 1, "learning_rate": 1e-3},
        {"grad_checkpoint": True},
        {"mask_prompt": True, "form": "completion"},
        {"num_layers": -1, "form": "chat", "max_seq_length": 16},
        {"lora_parameters": {"rank": 2, "dropout": 0.0, "scale": 3.0, "keys": ["self_attn.q_proj", "lm_head"]}},
    ],
    ids=lambda changes: "-".join(map(str, changes)),
)
def test_other_ways_to_tune(
    changes: dict[str, Any], base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dora, full, checkpointed layers, masked prompts, chats cut short, chosen layers."""
    form = changes.pop("form", "text")
    data = make_data(tmp_path / "data", form=form)
    given = settings(base[0], data, tmp_path, optimizer="adamw", learning_rate=3e-3, iters=4, steps_per_report=1)
    compare({**given, "grad_accumulation_steps": 1, **changes}, tmp_path, monkeypatch)


def test_a_quantised_base(tmp_path: Path, base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """QLoRA: the base stays in 4 bits, the adapters are the same as mlx-lm's."""
    import mlx_lm

    mlx_lm.convert(str(base[0]), str(tmp_path / "q"), quantize=True)
    given = settings(tmp_path / "q", base[1], tmp_path, optimizer="adam", iters=4, steps_per_report=1)
    compare({**given, "learning_rate": 3e-3, "grad_accumulation_steps": 1}, tmp_path, monkeypatch)


def test_the_layers_class_is_left_unpatched(base: Any, tmp_path: Path) -> None:
    """mlx-lm's gradient checkpoints patch the class of the layers for good; after a run here it is as before."""
    before = llama.TransformerBlock.__call__
    finetune(settings(*base, tmp_path / "out", iters=2, grad_checkpoint=True))
    assert llama.TransformerBlock.__call__ is before
