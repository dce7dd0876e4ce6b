"""What one process's part of a run does whatever is trained: tell of it, and find where to go on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .checkpoint import saved_arithmetic
from .folder import RunFolder
from .interrupt import StopRequest
from .machine import arithmetic, differences
from .report import Reporter, Silent


class Part:
    """One process's part of a run; the base of the sessions.

    Attributes:
        folder: The run's folder.
        report: Hears what happens; nobody once nobody can.
        stop: Whether somebody asked to stop; None before there is a loop to stop.
    """

    folder: RunFolder
    report: Reporter
    stop: StopRequest | None = None

    def _tell(self, say: Callable[..., None], *told: Any) -> None:
        """Report; when nobody can hear it any more, as in ``mufree pretrain | head``, say no more and ask to stop."""
        try:
            say(*told)
        except OSError:
            self.report = Silent()
            if self.stop is not None:
                self.stop.signal = self.stop.signal or signal.SIGPIPE

    def _newest(self) -> Path | None:
        """The newest whole checkpoint, with a sentence for each that is passed over; None, and a sentence, for none."""
        path, damaged = self.folder.latest()
        for text in damaged:
            self.report.note(text)
        if path is None:
            self.report.note("the run has no checkpoint yet; it starts again from its beginning")
        return path

    def _say_going_on(self, path: Path) -> None:
        """Say which checkpoint was loaded, and what on this machine could make other bits than on its own."""
        for text in differences(saved_arithmetic(path), arithmetic()):
            self.report.note(f"not bit for bit as one uninterrupted run: {text}")
        self.report.note(f"going on from {path}")
