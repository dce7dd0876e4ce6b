"""What days of training must not cost: memory, slow saves, a corpus in memory.

``MUFREE_LONG=1`` runs 10,000 updates, a corpus of 200 million tokens, and times saves at the default size.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mufree.training import pretrain, save_checkpoint
from mufree.training.config import PretrainConfig
from mufree.training.loop import Trainer
from mufree.training.prepare import prepare
from mufree.training.report import read_metrics
from training_settings import tiny

LONG = bool(os.environ.get("MUFREE_LONG"))

# Of a corpus of 80 MB, or 400; what Python and MLX's compiler take varies by a third of it.
ROOM = 20 << 20

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


def resident() -> int:
    """Bytes of this process in memory, mapped files among them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@pytest.mark.slow
def test_memory_does_not_grow_and_metrics_stay_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 updates: less than 1 % over what it was after 500; the short run has room for Python's own."""
    updates, settled, room = (10_000, 500, 0.01) if LONG else (240, 120, 0.03)
    seen: dict[int, int] = {}
    advance = Trainer.advance

    def watched(self: Trainer) -> float:
        loss = advance(self)
        update = self.position.update
        if update % (updates // 40) == 0 or update == settled:
            seen[update] = resident()
            lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
            assert len([line for line in lines if "loss" in line]) == (update - 1) // 10
        return loss

    monkeypatch.setattr(Trainer, "advance", watched)
    pretrain(
        tiny(tmp_path / "run", updates=updates, report_every=10, save_every=updates // 20, eval_every=updates // 10)
    )
    after = [size for update, size in seen.items() if update >= settled]
    growth = max(after) / seen[settled] - 1
    print(f"{updates} updates: {seen[settled] / 1e6:.1f} MB after {settled}, at most {100 * growth:+.2f} % later")
    assert growth < room


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """A corpus trains in the memory of one a twentieth its size, and goes on at the exact token."""
    size = 200_000_000 if LONG else 40_000_000
    drawn = np.random.default_rng(0).integers(0, 257, size, dtype=np.uint16)
    drawn.tofile(tmp_path / "large.bin")
    drawn[: size // 20].tofile(tmp_path / "small.bin")
    del drawn
    used = {}
    settings = {"seq_length": 64, "batch_size": 14, "updates": 40}
    for name in ("warm", "small", "large"):
        data = str(tmp_path / f"{'small' if name == 'warm' else name}.bin")
        before = resident()
        pretrain(tiny(tmp_path / name, **settings, data=data))
        used[name] = resident() - before
    told = ", ".join(f"{name} {size / 1e6:+.1f} MB" for name, size in used.items())
    print(f"{size:,} tokens, {2 * size / 1e6:.0f} MB: {told}")
    assert (
        used["large"] - used["small"] < 20 << 20
    )  # of 80 MB, or 400; what Python and the compiler take varies by a third of it
    data = str(tmp_path / "large.bin")
    pretrain(tiny(tmp_path / "pieces", **{**settings, "updates": 17}, data=data))
    pretrain(tiny(tmp_path / "pieces", **settings, data=data), resume=True)
    for name in ("y", "optimizer"):
        files = [tmp_path / run / "checkpoints/00000040" / f"{name}.safetensors" for run in ("large", "pieces")]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.skipif(not LONG, reason="MUFREE_LONG=1 times it")
def test_a_save_costs_less_than_five_updates(tmp_path: Path) -> None:
    """At the default size, medians of seven, in turns."""
    prepared = prepare(PretrainConfig(out=str(tmp_path / "run")))
    config = prepared.config
    count = config.batch_size
    trainer = Trainer(
        prepared.model, prepared.optimizer, lambda number: prepared.train.sequences(number * count, count, config.seed)
    )
    trainer.advance()
    updates, saves = [], []
    for number in range(7):
        clock = time.monotonic()
        for _ in range(3):
            trainer.advance()
        updates.append((time.monotonic() - clock) / 3)
        clock = time.monotonic()
        save_checkpoint(tmp_path / f"{number:08}", trainer.model, trainer.optimizer, {})
        saves.append(time.monotonic() - clock)
    ratio = statistics.median(saves) / statistics.median(updates)
    print(
        f"save {statistics.median(saves):.3f} s, update {statistics.median(updates):.3f} s: {ratio:.2f}",
        file=sys.stderr,
    )
    assert ratio < 5
