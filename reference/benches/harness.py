"""Timing pairs fairly: alternately, in one process, medians compared."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any, Literal

DEVICES = ("cpu", "metal", "cuda")


COUNTERS = 1 + 1e-6
"""A ratio of sizes may be over its limit by a few scalars: 44 bytes beside some hundred million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line chose.

    Args:
        millions: Parameters of the large cases, in millions.
        rounds: Rounds of each pair.
        only: What a row's name must contain.
        device: One of :data:`DEVICES`.
    """

    millions: int
    rounds: int
    only: str = ""
    device: str = "cpu"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def wants(self, name: str) -> bool:
        """Whether a row is asked for."""
        return self.only in name


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison.

    Args:
        name: What is compared with what.
        ours: Our figure.
        theirs: The other one.
        unit: ``"ms"``, ``"MB"``, ``"tokens/s"`` or ``""``.
        limit: The ratio ours / theirs must not exceed this; None if it is only reported.
    """

    name: str
    ours: float
    theirs: float
    unit: Literal["ms", "MB", "tokens/s", ""] = "ms"
    limit: float | None = None

    @property
    def ratio(self) -> float:
        """Ours over theirs."""
        return self.ours / self.theirs

    @property
    def passed(self) -> bool | None:
        """Whether the limit is met; None without one."""
        return None if self.limit is None else self.ratio <= self.limit * COUNTERS

    @property
    def limit_text(self) -> str:
        """The limit for a table."""
        return "–" if self.limit is None else f"≤ {self.limit:g}"

    def show(self, value: float) -> str:
        """A figure with its unit."""
        return f"{value:.3g} {self.unit}".strip()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "ratio": self.ratio, "passed": self.passed} | asdict(self)


def paired(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int, warmup: int = 2) -> tuple[float, float]:
    """Median milliseconds of two functions run alternately."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(warmup + rounds):
        for function, kept in zip((ours, theirs), times, strict=True):
            started = time.perf_counter()
            function()
            elapsed = 1e3 * (time.perf_counter() - started)
            if turn >= warmup:
                kept.append(elapsed)
    return median(times[0]), median(times[1])


def missing_device(name: str) -> str | None:
    """Why MLX cannot compute on ``cpu``, ``metal`` or ``cuda`` here, or None."""
    import mlx.core as mx

    there = ["cpu", *(other for other in DEVICES[1:] if getattr(mx, other).is_available())]
    if name in there:
        return None
    return f"the installed MLX has no {name} on this machine; it has {', '.join(there)}"


def use_device(name: str) -> None:
    """Let MLX compute there from now on."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu if name == "cpu" else mx.gpu)


def machine() -> dict[str, str]:
    """Where the figures come from."""
    found = {"processor": processor(), "cores": str(os.cpu_count()), "system": platform.platform()}
    for package in ("mlx", "torch", "schedulefree"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    return next(_processors(), platform.processor() or platform.machine())


def _processors() -> Iterator[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 – not a file to have a path object for
            for line in lines:
                if line.startswith("model name"):
                    yield line.split(":", 1)[1].strip()
    except OSError:
        return
