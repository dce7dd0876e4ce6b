"""A run in a process of its own that is killed at one moment: ``python killed_run.py FOLDER TESTS MOMENT UPDATES``.

The moment is ``file:N``, at the N-th thing done to a file of the run; ``half:N``, in the middle of the N-th file of
arrays, of which half is on the disk; ``time:S``, S seconds after the first update; or ``never``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

FILE_EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_file(out: str, number: int) -> None:
    """Python tells of everything that is done to files; MLX's own writing it does not see."""
    seen = 0

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in FILE_EVENTS and any(str(one).startswith(out) for one in arguments):
            seen += 1
            if seen == number:
                die()

    sys.addaudithook(heard)


def kill_in_arrays(number: int) -> None:
    import mlx.core as mx

    save, seen = mx.save_safetensors, []

    def half(path: str, *arguments: Any) -> None:
        save(path, *arguments)
        seen.append(path)
        if len(seen) == number:
            os.truncate(path, Path(path).stat().st_size // 2)
            die()

    mx.save_safetensors = half


def kill_after(seconds: float) -> None:
    from mufree.training.loop import Trainer

    advance, timers = Trainer.advance, []

    def started(self: Any) -> float:
        loss = advance(self)
        if not timers:
            timers.append(threading.Timer(seconds, die))
            timers[0].start()
        return loss

    Trainer.advance = started  # type: ignore[method-assign]


def main(out: str, tests: str, moment: str, updates: str) -> None:
    from mufree.cli.blas import prepare_machine

    prepare_machine()
    sys.path.insert(0, tests)
    from mufree.training import pretrain
    from training_settings import killable

    kind, _, at = moment.partition(":")
    resume = (Path(out) / "run.json").exists()
    if kind == "file":
        kill_at_file(out, int(at))
    elif kind == "half":
        kill_in_arrays(int(at))
    elif kind == "time":
        kill_after(float(at))
    pretrain(killable(Path(out), int(updates)), resume=resume)


if __name__ == "__main__":
    main(*sys.argv[1:])
