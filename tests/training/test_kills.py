"""SIGKILL at random moments, many of them inside a save.

``MUFREE_LONG=1`` kills twenty times in place of four.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mufree.training import pretrain
from mufree.training.checkpoint import checkpoints
from mufree.training.folder import RunFolder
from training_settings import killable

LONG = bool(os.environ.get("MUFREE_LONG"))
KILLS = 20 if LONG else 4
UPDATES = 60 if LONG else 12
ARRAYS = ("x", "y", "optimizer", "random")

# A save does some 40 things to files and writes 4 of arrays; an update takes some 20 ms.
PER_SAVE = 40


def moments(seed: int) -> list[str]:
    """By turns: at something done to a file, inside a file of arrays, after a time."""
    drawn = random.Random(seed)
    kinds = (
        lambda: f"file:{drawn.randrange(1, 3 * PER_SAVE)}",
        lambda: f"half:{drawn.randrange(1, 13)}",
        lambda: f"time:{drawn.uniform(0, 0.5):.3f}",
        lambda: f"file:{drawn.randrange(PER_SAVE, 3 * PER_SAVE)}",
    )
    return [kinds[number % len(kinds)]() for number in range(KILLS)]


def arrays(checkpoint: Path) -> dict[str, bytes]:
    return {name: (checkpoint / f"{name}.safetensors").read_bytes() for name in ARRAYS}


@pytest.mark.slow
def test_killed_at_any_moment_each_resume_is_the_undisturbed_run(tmp_path: Path) -> None:
    """After every kill the newest whole checkpoint has the bits of the undisturbed run's at the same update."""
    pretrain(replace(killable(tmp_path / "alone", UPDATES), keep=UPDATES))
    alone = {int(path.name): arrays(path) for path in checkpoints(tmp_path / "alone" / "checkpoints")}
    out, here = tmp_path / "killed", Path(__file__).parent
    reached = []
    for moment in moments(seed=8):
        words = [sys.executable, str(here / "killed_run.py"), str(out), str(here.parent), moment, str(UPDATES)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, (moment, done.stderr[-500:])
        folder = RunFolder(out)
        newest, damaged = folder.latest() if (out / "run.json").exists() else (None, [])
        assert not damaged
        reached.append(int(newest.name) if newest else 0)
        if newest:
            assert arrays(newest) == alone[reached[-1]], moment
    assert reached == sorted(reached)
    assert reached[-1] > reached[0]
    if LONG:
        print(json.dumps(dict(zip(moments(seed=8), reached, strict=True))))
    pretrain(killable(out, UPDATES), resume=True)
    assert arrays(out / "checkpoints" / f"{UPDATES:08}") == alone[UPDATES]
    assert not [path for path in out.rglob("*") if path.name.endswith((".new", ".old"))]
