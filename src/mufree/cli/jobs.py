"""Helper processes that work in the same study's folder."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import refuse

_HELPER = "MUFREE_HELPER"
_OWN = ("--jobs", "--save", "--plot")


@contextmanager
def helpers(arguments: Sequence[str], jobs: int | None) -> Iterator[int]:
    """Run this very command in ``jobs - 1`` further processes, silently, for as long as the block takes.

    They share the work through the study's folder. They end with the block, and with this process, however it ends.

    Args:
        arguments: Of the command, with its name.
        jobs: Processes, this one among them; None for two on a CPU, whose matrix products MLX runs on one core each,
            and one on a GPU.

    Yields:
        How many work side by side, this one among them.

    Raises:
        Refused: For fewer than one.
    """
    if jobs is None:
        jobs = _side_by_side()
    if jobs < 1:
        refuse("out_of_range", "jobs", f"{jobs} is too few; give a whole number ≥ 1")
    if os.environ.get(_HELPER):
        threading.Thread(target=_end_with_parent, daemon=True).start()
        jobs = 1
    command = [sys.executable, "-m", "mufree", *_alone(arguments)]
    silent = subprocess.DEVNULL
    environment = {**os.environ, _HELPER: "1"}
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent, stderr=silent, env=environment)
        for _ in range(jobs - 1)
    ]
    try:
        yield jobs
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _side_by_side() -> int:
    import mlx.core as mx

    return min(2, os.cpu_count() or 1) if mx.default_device() == mx.Device(mx.cpu) else 1


def _end_with_parent() -> None:
    """Wait for the end of a pipe that the parent never writes to and only its end closes."""
    sys.stdin.buffer.read()
    os._exit(1)


def _alone(arguments: Sequence[str]) -> list[str]:
    """The arguments of a helper: it writes cells and nothing beside them."""
    kept, skip = [], False
    for argument in arguments:
        if skip or argument in _OWN:
            skip = not skip
        elif not argument.startswith(tuple(f"{name}=" for name in _OWN)):
            kept.append(argument)
    return kept
