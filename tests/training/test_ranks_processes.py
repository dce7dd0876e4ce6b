"""``mufree pretrain`` as two processes on loopback, started by ``mlx.launch`` and by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mufree.files import read_json
from mufree.training import pretrain
from mufree.training.checkpoint import checkpoints, verify
from mufree.training.lifeline import LOST_STATUS
from mufree.training.report import read_metrics
from rank_processes import WAIT_SECONDS, Processes, launched_ranks, wait_until
from training_settings import flags, tiny

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"batch_size": 4, "lr": 0.001, "updates": 20, "save_every": 10, "eval_batches": 3}

AS_ONE = 1e-6
"""Relative, of y and z, after 20 updates at rate 1e-3: what the order of a sum of float32 may do. It does 4e-8; rows
left out, or another seed, do 1e-2."""

SECOND_MOMENT = 1e-5
"""Relative, of v, which gradients summed instead of averaged make 4 times as large, where y hardly shows it."""

ENDS_WITHIN = 30
"""Seconds from a rank's death to the end of the others."""


def difference(one: Path, other: Path, part: str, ending: str) -> float:
    """‖one − other‖ / ‖other‖ over the arrays of a checkpoint's file whose path has an ending."""
    found: list[Any] = [mx.load(str(folder / f"{part}.safetensors")) for folder in (one, other)]
    paths = [path for path in found[1] if path.endswith(ending)]
    assert paths
    square = sum(mx.sum((found[0][path] - found[1][path]) ** 2).item() for path in paths)
    return float((square / sum(mx.sum(found[1][path] ** 2).item() for path in paths)) ** 0.5)


def assert_as_one(run: Path, single: Path, update: int) -> None:
    """Two runs have made the same updates, up to rounding."""
    here, there = (folder / "checkpoints" / f"{update:08}" for folder in (run, single))
    assert difference(here, there, "y", "") < AS_ONE
    assert difference(here, there, "optimizer", ".z") < AS_ONE
    assert difference(here, there, "optimizer", ".v") < SECOND_MOMENT
    assert read_json(here / "facts.json")["position"]["tokens"] == update * 4 * 16


def test_two_launched_ranks_train_as_one_process_and_one_goes_on(tmp_path: Path) -> None:
    """The same y and z; rank 0 alone prints and writes; a single process goes on with the run as with its own."""
    run, single = tmp_path / "run", tmp_path / "single"
    with Processes() as processes:
        launcher = processes.launch(["pretrain", *flags(run, **SETTINGS)])
        pretrain(tiny(single, **SETTINGS))
        said, errors = launcher.communicate(timeout=WAIT_SECONDS)
    assert launcher.returncode == 0, errors
    assert said.count("2 ranks, each with 2 sequences") == said.count("read back by mlx_lm") == 1
    assert "Traceback" not in said + errors
    assert_as_one(run, single, 20)
    lines = [read_metrics(folder / "metrics.jsonl") for folder in (run, single)]
    assert [line["update"] for line in lines[0]] == [line["update"] for line in lines[1]]
    assert lines[0][-1]["valid_loss_x"] == pytest.approx(lines[1][-1]["valid_loss_x"], rel=AS_ONE)
    assert lines[0][1]["loss"] == pytest.approx(lines[1][1]["loss"], rel=AS_ONE)
    for folder in (run, single):
        pretrain(tiny(folder, **SETTINGS | {"updates": 24}), resume=True)
    assert_as_one(run, single, 24)


def test_two_ranks_go_on_with_a_single_run_and_a_signal_to_one_stops_both(tmp_path: Path) -> None:
    """Both stop after the same update, and what they made is what one process makes.

    Rank 1, as on a machine of its own, has no folder of the run, and makes none.
    """
    run, single, elsewhere = (tmp_path / name for name in ("run", "single", "elsewhere"))
    for folder in (run, single):
        pretrain(tiny(folder, **SETTINGS))
    words = ["pretrain", "--resume", "--updates", "1000000", "--save-every", "1", "--out"]
    with Processes() as processes:
        ranks = processes.start([*words, str(run)], [*words, str(elsewhere)], folder=tmp_path)
        wait_until(lambda: int(checkpoints(run / "checkpoints")[-1].name) > SETTINGS["updates"], ranks)
        ranks[1].send_signal(signal.SIGTERM)
        said = [rank.communicate(timeout=WAIT_SECONDS) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [128 + signal.SIGTERM] * 2, said
    assert said[1] == ("", "")
    assert not elsewhere.exists()
    update = int(checkpoints(run / "checkpoints")[-1].name)
    assert f"stopped after update {update}; everything is saved" in said[0][0]
    pretrain(tiny(single, **SETTINGS | {"updates": update}), resume=True)
    assert_as_one(run, single, update)


def documents(folder: Path) -> Path:
    """A text of documents of very different lengths."""
    path = folder / "text.jsonl"
    texts = (f"Document {number}. " * (1 + number * number % 7) for number in range(150))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def test_ranks_with_packed_documents_train_as_one_and_its_best_is_kept(tmp_path: Path) -> None:
    """Each tokenises or reads the cache; micro-batches count by tokens; clipped; and one process goes on, worse."""
    run, single = tmp_path / "run", tmp_path / "single"
    settings: dict[str, Any] = SETTINGS | {"data": str(documents(tmp_path)), "eval_every": 5, "keep": 1}
    settings |= {"packing": "documents", "accumulation": 2, "accumulation_weight": "tokens", "max_grad_norm": 0.1}
    settings |= {"cache": str(tmp_path / "tokens")}
    with Processes() as processes:
        launcher = processes.launch(["pretrain", *flags(run, **settings)])
        _, errors = launcher.communicate(timeout=WAIT_SECONDS)
    assert launcher.returncode == 0, errors
    pretrain(tiny(single, **settings))
    here, there = (folder / "checkpoints" / "00000020" for folder in (run, single))
    assert difference(here, there, "y", "") < AS_ONE
    assert difference(here, there, "optimizer", ".v") < SECOND_MOMENT
    facts = [read_json(folder / "facts.json") for folder in (here, there)]
    assert facts[0]["position"]["tokens"] == facts[1]["position"]["tokens"] < facts[0]["position"]["offset"]
    lines = [read_metrics(folder / "metrics.jsonl") for folder in (run, single)]
    assert [set(line) for line in lines[0]] == [set(line) for line in lines[1]]
    assert lines[0][1]["gradient_norm"] == pytest.approx(lines[1][1]["gradient_norm"], rel=100 * AS_ONE)
    assert len(list((tmp_path / "tokens").glob("[!.]*"))) == 1
    worse = settings | {"lr": 1.0, "updates": 30, "save_every": 5}
    pretrain(tiny(run, **worse), resume=True, despite=["lr"])
    assert [path.name for path in checkpoints(run / "checkpoints")] == ["00000020", "00000030"]


def test_ranks_start_from_weights_alone_and_go_on_with_what_is_meant(tmp_path: Path) -> None:
    """In bfloat16, each from its own copy; what is lost is said once; another rate is refused until it is named."""
    source, run = tmp_path / "source", tmp_path / "run"
    shared: dict[str, Any] = {"data": str(documents(tmp_path)), "batch_size": 4, "accumulation": 2}
    export = pretrain(tiny(source, **shared)).export
    assert export is not None
    copy = Path(shutil.copytree(export, tmp_path / "copy"))
    words = [[*flags(run, **shared, dtype="bfloat16", weights=str(one)), "--grad-checkpoint"] for one in (export, copy)]
    with Processes() as processes:
        ranks = processes.start(*(["pretrain", *one] for one in words), folder=tmp_path)
        said = [rank.communicate(timeout=WAIT_SECONDS) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert said[0][0].count("started from the weights in") == 1
    assert said[1] == ("", "")
    losses = [
        next(line for line in read_metrics(folder / "metrics.jsonl")[place:] if "valid_loss_x" in line)["valid_loss_x"]
        for folder, place in ((run, 0), (source, -1))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)  # rounded to bfloat16
    again = ["pretrain", "--resume", "--out", str(run), "--updates", "8", "--lr", "0.002"]
    for more, other, says in (
        ([], [], "or say that it is meant: --despite lr"),
        (["--despite", "lr"], ["--lr", "0.003"], "lr: rank 1 has 0.003, rank 0 has 0.002"),
        (["--despite", "lr"], [], "as it is meant to, lr goes on at 0.002"),
    ):
        with Processes() as processes:
            ranks = processes.start([*again, *more], [*again, *more, *other], folder=tmp_path)
            said = [rank.communicate(timeout=WAIT_SECONDS) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0 if more and not other else 2] * 2, said
        assert says in said[0][0] + said[0][1]
    shared |= {"dtype": "bfloat16", "weights": str(export), "grad_checkpoint": True, "lr": 0.002}
    assert pretrain(tiny(run, **shared, updates=9), resume=True).update == 9


@pytest.mark.parametrize("launched", [False, True])
def test_a_killed_rank_ends_the_other(launched: bool, tmp_path: Path) -> None:
    """In time, with rank, update and last checkpoint, which is whole."""
    run = tmp_path / "run"
    words = ["pretrain", *flags(run, **SETTINGS | {"updates": 1000000, "save_every": 5})]
    if launched and sys.platform != "linux":
        pytest.skip("the launcher's processes are found in /proc")
    with Processes() as processes:
        started = [processes.launch(words)] if launched else processes.start(words, words, folder=tmp_path)
        wait_until(lambda: checkpoints(run / "checkpoints"), started)
        os.kill(launched_ranks(started[0])[1] if launched else started[1].pid, signal.SIGKILL)
        killed = time.monotonic()
        said = [process.communicate(timeout=ENDS_WITHIN) for process in started]
        assert time.monotonic() - killed < ENDS_WITHIN
    kept = checkpoints(run / "checkpoints")
    verify(kept[-1])
    # Reset, if news of a checkpoint was on its way to the killed one.
    closed = "its connection was closed|Connection reset by peer"
    assert re.search(rf"mufree: rank 0 ends: rank 1 is gone \(({closed})\), after update \d", said[0][1])
    # The one before is named if the end came between the last one's renaming and the news of it.
    named = [path for path in kept[-2:] if f"the last checkpoint is {path}. Go on with: " in said[0][1]]
    assert len(named) == 1
    verify(named[0])
    assert f"mufree pretrain --resume --out {run}\n" in said[0][1]
    if launched:
        assert f"rank 0 exited with code {LOST_STATUS}" in said[0][1]
    else:
        assert started[0].returncode == LOST_STATUS
