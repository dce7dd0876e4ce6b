"""Settings of runs small enough for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mufree.training.config import PretrainConfig

TINY: dict[str, Any] = {
    "width": 32,
    "base_width": 16,
    "layers": 1,
    "head_dim": 8,
    "seq_length": 16,
    "batch_size": 2,
    "warmup": 3,
    "updates": 6,
    "eval_every": 100,
    "save_every": 100,
    "report_every": 2,
    "eval_batches": 2,
}


def tiny(out: Path, **changes: Any) -> PretrainConfig:
    """A config of a tiny run, with changes."""
    return PretrainConfig(**{**TINY, "out": str(out), **changes})


SMALL = str(Path(__file__).parent.parent / "LICENSE")
"""A text of a kilobyte: tokenising the default one is most of what a tiny run costs."""


def small(out: Path, **changes: Any) -> PretrainConfig:
    """A config of a tiny run on a small text, with changes."""
    return tiny(out, **{"data": SMALL, **changes})


def flags(out: Path, **changes: Any) -> list[str]:
    """The same as command-line options."""
    settings = {**TINY, "out": str(out), **changes}
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def killable(out: Path, updates: int) -> PretrainConfig:
    """A run that is killed at any moment: it saves after every update, of three micro-batches, weights bfloat16."""
    return small(out, updates=updates, accumulation=3, dtype="bfloat16", save_every=1, report_every=1, eval_every=7)


class Heard:
    """A reporter that keeps what it hears."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self, update: int, limit: int | None) -> None: ...

    def record(self, line: Any) -> None: ...

    def stop(self) -> None: ...
