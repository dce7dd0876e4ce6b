"""Ctrl-C, a polite kill, a terminal that was closed: finish the update, then stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Inside, the first SIGINT, SIGTERM or SIGHUP is only noted; a second one ends the program at once.

    One that is ignored, as SIGHUP under ``nohup``, stays ignored. Outside the main thread, where Python allows no
    handlers, nothing is changed.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def noted(number: int, _frame: FrameType | None) -> None:
        request.signal = number
        restore()

    for number in before:
        signal.signal(number, noted)
    try:
        yield request
    finally:
        restore()
