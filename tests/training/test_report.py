"""What a person sees."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from mufree.training import pretrain
from mufree.training.report import ConsoleReporter, OpenConsole
from training_settings import tiny

LINE = {"update": 12345, "loss": 1.2345, "lr": 2.0**-6, "tokens_per_second": 98765.4, "seconds_left": 5025.0}


@pytest.mark.parametrize("width", [80, 120])
def test_a_live_line_fits_the_terminal(width: int) -> None:
    """Update, losses, rate, speed and time left, with nothing cut off; a bar where there is room."""
    screen = io.StringIO()
    report = ConsoleReporter(OpenConsole(file=screen, force_terminal=True, width=width, legacy_windows=False))
    report.start(0, 99999)
    report.record({"update": 0, "valid_loss_x": 2.3456})
    report.record(LINE)
    report.stop()
    said = screen.getvalue()
    assert "…" not in said
    for words in ("12345/99999", "loss 1.234", "valid 2.346", "98,765 tokens/s", "rate 0.0156", "1:23:45 left"):
        assert words in said
    assert ("━" in said) == (width == 120)


def test_lines_elsewhere() -> None:
    """One a report, plain, and nothing that a terminal would interpret."""
    file = io.StringIO()
    report = ConsoleReporter(OpenConsole(file=file))
    report.start(0, None)
    report.record({**LINE, "seconds_left": None})
    report.record({"update": 12345, "valid_loss_x": 1.5, "valid_loss_y": 1.25})
    report.note("a [note] with brackets")
    report.stop()
    assert file.getvalue().splitlines() == [
        "update 12345  training loss 1.2345  rate 0.01562  98,765 tokens/s",
        "update 12345  validation loss 1.5000 at x  validation loss 1.2500 at y",
        "a [note] with brackets",
    ]


class Closed(io.StringIO):
    """A pipe whose reader goes away after a few lines."""

    def write(self, text: str) -> int:
        if "update     4" in text:
            raise BrokenPipeError
        return super().write(text)


def test_when_nobody_listens_any_more_the_run_stops_and_is_saved(tmp_path: Path) -> None:
    """As a polite signal does, with everything on the disk."""
    run: Any = pretrain(tiny(tmp_path / "run"), report=ConsoleReporter(OpenConsole(file=Closed())))
    assert (run.update, run.signal) == (4, 13)
    assert (tmp_path / "run" / "checkpoints" / "00000004").is_dir()
    assert run.export.is_dir()
    assert pretrain(tiny(tmp_path / "run"), resume=True).update == 6
