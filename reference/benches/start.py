"""Time to the first update, from a fresh process: imports, model, compilation and one step of the default model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from training_sides import torch_missing

from .harness import Options, Row, paired

DESCRIPTION = "time to the first update"
SCRIPT = Path(__file__).parents[1] / "training_sides.py"


def rows(options: Options) -> Iterator[Row]:
    """Processes started alternately; the first pair only warms the disk."""
    for other in ("MLX AdamW", "PyTorch schedulefree", "PyTorch AdamW"):
        name = f"first update / {other}"
        if not options.wants(name):
            continue
        missing = torch_missing(options.device) if "PyTorch" in other else None
        if missing:
            print(f"{name}: left out, {missing}")
            continue
        ours, theirs = paired(_process("mufree", options), _process(other, options), options.rounds, warmup=1)
        yield Row(name=name, ours=ours, theirs=theirs)


def _process(side: str, options: Options) -> Callable[[], object]:
    command = [sys.executable, str(SCRIPT), side, "--device", options.device]
    return partial(subprocess.run, command, check=True, capture_output=True)
