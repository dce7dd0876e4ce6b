"""A fine-tune that was stopped, killed or made longer ends where an undisturbed one does, bit for bit."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mufree import CheckpointError, Refused
from mufree.lm import finetune
from mufree.lm.tuning.mapping import from_mapping
from mufree.lm.tuning.prepare import prepare
from mufree.training.report import Silent, read_metrics
from tiny_finetune import make_data, make_model, settings

# Micro-batches 1 to 24, three an update, 11 an epoch; saves fall between updates; validations draw 2 of 4 batches.
LONG = {"iters": 24, "grad_accumulation_steps": 3, "save_every": 5, "steps_per_eval": 5, "val_batches": 2}
LONG |= {"learning_rate": 1e-2, "warmup": 3, "steps_per_report": 2}


class Killed(Exception):
    """Stands for the end of a process."""


class EndsAt(Silent):
    """Ends the run, at once or politely, when it hears of an iteration."""

    def __init__(self, iteration: int, *, politely: bool = False) -> None:
        self.iteration, self.politely, self.said = iteration, politely, []

    def note(self, text: str) -> None:
        self.said.append(text)

    def record(self, line: Mapping[str, Any]) -> None:
        if line["iteration"] >= self.iteration and "loss" in line:
            if not self.politely:
                raise Killed
            os.kill(os.getpid(), signal.SIGTERM)
            self.politely, self.iteration = True, 10**9


@pytest.fixture(scope="module")
def undisturbed(base: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from beginning to end."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    finetune(settings(*base, out, **LONG))
    return out


def same(one: Path, other: Path) -> bool:
    wanted, got = mx.load(str(one)), mx.load(str(other))
    return wanted.keys() == got.keys() and all(mx.array_equal(wanted[path], got[path]).item() for path in wanted)


def assert_ends_alike(out: Path, undisturbed: Path) -> None:
    """Adapters, optimizer state and every loss are the undisturbed run's; the files have its numbers."""
    assert same(undisturbed / "adapters.safetensors", out / "adapters.safetensors")
    assert same(undisturbed / "best" / "adapters.safetensors", out / "best" / "adapters.safetensors")
    last = "checkpoints/00000024/optimizer.safetensors"
    assert same(undisturbed / last, out / last)
    numbered = sorted(path.name for path in undisturbed.glob("0*_adapters.safetensors"))
    assert numbered == [f"{number:07}_adapters.safetensors" for number in (5, 10, 15, 20)]
    assert sorted(path.name for path in out.glob("0*_adapters.safetensors")) == numbered
    assert all(same(undisturbed / name, out / name) for name in numbered)
    wanted, got = (read_metrics(folder / "metrics.jsonl") for folder in (undisturbed, out))
    kept = [line for line in wanted if "valid_loss_x" in line]
    assert [line for line in got if "valid_loss_x" in line] == kept
    assert [line["iteration"] for line in kept] == [0, 4, 9, 14, 19, 23, 24]
    tokens = {line["iteration"]: line["tokens"] for line in wanted if "tokens" in line}
    assert {line["iteration"]: line["tokens"] for line in got if "tokens" in line} == tokens


def test_killed_twice(base: Any, undisturbed: Path, tmp_path: Path) -> None:
    """Killed in the first epoch and in the second, in the middle of an update each time."""
    out = tmp_path / "out"
    for iteration, resume, place in ((8, False, 3), (19, True, 15)):
        np.random.seed(99)
        mx.random.seed(99)
        with pytest.raises(Killed):
            finetune(settings(*base, out, **LONG), resume=resume, report=EndsAt(iteration))
        assert sorted(path.name for path in (out / "checkpoints").iterdir())[-1] == f"{place:08}"
    finetune({"adapter_path": str(out)}, resume=True)
    assert_ends_alike(out, undisturbed)


def test_stopped_and_moved(base: Any, undisturbed: Path, tmp_path: Path) -> None:
    """A signal ends the run after a whole update, with everything saved; the folder may have moved since."""
    heard = EndsAt(14, politely=True)
    run = finetune(settings(*base, tmp_path / "here", **LONG), report=heard)
    assert (run.signal, run.update) == (signal.SIGTERM, 5)
    shutil.move(tmp_path / "here", tmp_path / "there")
    run = finetune({"adapter_path": str(tmp_path / "there")}, resume=True, report=heard)
    assert (run.signal, run.update) == (None, 8)
    assert any("going on from" in text for text in heard.said)
    assert_ends_alike(tmp_path / "there", undisturbed)


def test_nobody_listens_any_more(base: Any, undisturbed: Path, tmp_path: Path) -> None:
    """As in ``mufree lora | head``: the run stops as for a signal, and can go on."""

    class Closed(EndsAt):
        def record(self, line: Mapping[str, Any]) -> None:
            if line["iteration"] >= self.iteration:
                raise BrokenPipeError

    run = finetune(settings(*base, tmp_path / "out", **LONG), report=Closed(4))
    assert (run.signal, run.update) == (signal.SIGPIPE, 2)
    finetune({"adapter_path": str(tmp_path / "out")}, resume=True)
    assert_ends_alike(tmp_path / "out", undisturbed)


def test_made_longer(base: Any, undisturbed: Path, tmp_path: Path) -> None:
    """From 13 to 18 to 24, it makes the updates of one of 24: what was left over is used again, and the validation of
    each end, which the longest run does not have there, draws nothing."""
    out = tmp_path / "out"
    finetune(settings(*base, out, **{**LONG, "iters": 13}))
    assert read_metrics(out / "metrics.jsonl")[-1]["iteration"] == 13
    finetune({"adapter_path": str(out), "iters": 18}, resume=True)
    finetune({"adapter_path": str(out), "iters": 24}, resume=True)
    assert same(undisturbed / "adapters.safetensors", out / "adapters.safetensors")
    heard = EndsAt(99)
    finetune({"adapter_path": str(out)}, resume=True, report=heard)
    assert same(undisturbed / "adapters.safetensors", out / "adapters.safetensors")
    assert any("has used 24 micro-batches already; for more give --iters" in text for text in heard.said)


@pytest.mark.parametrize("name", ["adamw", "adamw_torch"])
def test_other_optimizers_go_on_too(name: str, base: Any, tmp_path: Path) -> None:
    """mlx-lm's own with its schedule, and a planned one."""
    schedule = {"name": "linear_schedule", "warmup": 2, "arguments": [1e-2, 1e-3, 6]}
    given = {**LONG, "iters": 12, "optimizer": name, "lr_schedule": schedule}
    del given["warmup"], given["learning_rate"]
    finetune(settings(*base, tmp_path / "whole", **given))
    with pytest.raises(Killed):
        finetune(settings(*base, tmp_path / "cut", **given), report=EndsAt(8))
    finetune({"adapter_path": str(tmp_path / "cut")}, resume=True)
    assert same(tmp_path / "whole" / "adapters.safetensors", tmp_path / "cut" / "adapters.safetensors")


def test_another_run_is_refused(base: Any, undisturbed: Path, tmp_path: Path) -> None:
    """Other settings, another model, other data; a folder without a run; a folder with one and no --resume."""
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    for changes, says in (
        ({"learning_rate": 0.5, "batch_size": 3}, r"batch_size: 3 contradicts .* 2; leave it out\nlearning_rate: 0.5"),
        ({"model": str(make_model(tmp_path / "other", num_hidden_layers=3))}, "model: .* contradicts"),
    ):
        with pytest.raises(CheckpointError, match=says):
            finetune({"adapter_path": str(out), **changes}, resume=True)
    with pytest.raises(Refused, match=r"adapter_path: .* holds no run to resume"):
        finetune({"adapter_path": str(tmp_path / "none")}, resume=True)
    with pytest.raises(Refused, match=r"adapter_path: .* go on with --resume"):
        finetune(settings(*base, out, **LONG))
    (out / "run.json").unlink()
    with pytest.raises(Refused, match=r"no optimizer state to go on from; start from .* --resume-adapter-file"):
        finetune({"adapter_path": str(out)}, resume=True)


def test_the_data_must_be_the_same(base: Any, undisturbed: Path, tmp_path: Path) -> None:
    """Rows that changed under the same name are seen."""
    data = make_data(tmp_path / "data")
    finetune(settings(base[0], data, tmp_path / "out", iters=2))
    make_data(data, train=24)
    with pytest.raises(
        CheckpointError, match=r"data: .* contradicts the saved run: the rows of its training set are others"
    ):
        finetune({"adapter_path": str(tmp_path / "out"), "iters": 4}, resume=True)


def test_weights_alone_say_what_is_lost(base: Any, undisturbed: Path, tmp_path: Path) -> None:
    """mlx-lm's way to go on: optimizer state, numbering and order begin anew; another scale is noticed."""
    file = undisturbed / "adapters.safetensors"
    given = settings(*base, tmp_path / "out", resume_adapter_file=str(file))
    prepared = prepare(from_mapping(given))
    assert any("optimizer state, numbering, data order and random state begin anew" in n for n in prepared.notes)
    saved: Any = mx.load(str(file))
    here = dict(tree_flatten(prepared.model.trainable_parameters()))
    assert all(mx.array_equal(saved[path], here[path]).item() for path in saved)
    other = {**given, "lora_parameters": {"rank": 4, "dropout": 0.0, "scale": 20.0}}
    assert any("trained with scale 10; here it is 20" in n for n in prepare(from_mapping(other)).notes)
