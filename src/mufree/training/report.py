"""What a run tells: metrics as JSON lines, and progress for a person, live or as plain lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from ..files import write_text

_ROOM_FOR_A_BAR = 110
"""Columns from which a progress bar fits beside the numbers."""


class Reporter(Protocol):
    """Hears what a run does. Losses are nats a token."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def start(self, update: int, limit: int | None) -> None:
        """Training starts after ``update`` updates and goes on to ``limit``."""

    def record(self, line: Mapping[str, Any]) -> None:
        """One line of the metrics."""

    def stop(self) -> None:
        """Training has ended."""


class Silent:
    """Says nothing."""

    def note(self, text: str) -> None:
        """See :class:`Reporter`."""

    def start(self, update: int, limit: int | None) -> None:
        """See :class:`Reporter`."""

    def record(self, line: Mapping[str, Any]) -> None:
        """See :class:`Reporter`."""

    def stop(self) -> None:
        """See :class:`Reporter`."""


class OpenConsole(Console):
    """A console that raises BrokenPipeError when nobody reads it any more, where rich's own ends the program."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled."""
        raise


class ConsoleReporter:
    """A live line on a terminal, plain lines elsewhere.

    Args:
        console: Where to write. What cannot be written raises OSError.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or OpenConsole()
        self._progress: Progress | None = None
        self._limit: int | None = None
        self._seen: dict[str, Any] = {}

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None elsewhere, where a line may have any length."""
        return self.console.width if self.console.is_terminal else None

    def note(self, text: str) -> None:
        """See :class:`Reporter`."""
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def start(self, update: int, limit: int | None) -> None:
        """See :class:`Reporter`."""
        self._limit = limit
        if self.console.is_terminal:
            roomy = self.console.width >= _ROOM_FOR_A_BAR
            bar = (BarColumn(bar_width=20), TaskProgressColumn()) if roomy else ()
            count = "{task.completed:.0f}" + ("/{task.total:.0f}" if limit else "")
            self._progress = Progress(
                TextColumn(f"update {count}" if roomy else count),
                *bar,
                TextColumn("{task.description}"),
                console=self.console,
                transient=True,
            )
            self._progress.add_task("", total=limit, completed=update)
            self._progress.start()

    def record(self, line: Mapping[str, Any]) -> None:
        """See :class:`Reporter`."""
        self._seen.update(line)
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=line["update"], description=self._summary())
        if self._progress is None or any(name.startswith("valid_loss") for name in line):
            self.note(_plain(line))

    def stop(self) -> None:
        """See :class:`Reporter`."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _summary(self) -> str:
        seen = self._seen
        parts = [f"loss {seen['loss']:.3f}"] if "loss" in seen else []
        parts += [f"valid {seen['valid_loss_x']:.3f}"] if "valid_loss_x" in seen else []
        if "tokens_per_second" in seen:
            parts += [f"{seen['tokens_per_second']:,.0f} tokens/s", f"rate {seen['lr']:.3g}"]
        if seen.get("seconds_left") is not None:
            parts += [f"{_clock(seen['seconds_left'])} left"]
        return "  ".join(parts)


def _plain(line: Mapping[str, Any]) -> str:
    parts = [f"update {line['update']:>5}"]
    if "loss" in line:
        parts += [f"training loss {line['loss']:.4f}", f"rate {line['lr']:.4g}"]
        parts += [f"{line['tokens_per_second']:,.0f} tokens/s"]
        parts += [f"{_clock(line['seconds_left'])} left"] if line.get("seconds_left") is not None else []
    if "valid_loss" in line:
        parts += [f"validation loss {line['valid_loss']:.4f}"]
    if "valid_loss_x" in line:
        parts += [f"validation loss {line['valid_loss_x']:.4f} at x"]
    if "valid_loss_y" in line:
        parts += [f"validation loss {line['valid_loss_y']:.4f} at y"]
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Metrics:
    """The JSON-lines file of a run: one object a report, each line complete when it is there.

    Args:
        path: The file.
        made: Lines of later updates are dropped first: the run goes on from here and writes them again. A run that
            starts from its beginning keeps none.
        counter: What numbers the lines.
    """

    def __init__(self, path: Path, made: int, *, counter: str = "update") -> None:
        kept = [line for line in read_metrics(path) if line.get(counter, 0) <= made] if made else []
        self._last = kept[-1] if kept else None
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one object, unless it is the last one once more."""
        if line != self._last:
            self._file.write(json.dumps(line) + "\n")
        self._last = dict(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The objects of a metrics file; a line that was cut short or damaged is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and isinstance(line.get("update"), int):
            lines.append(line)
    return lines
