"""What a comparison finds: figures beside their bounds, and curves for the plot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Curves = dict[str, dict[int, float]]
Tick = Callable[[str], None]
"""Called with what was just done, for the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is compared.

    Args:
        seeds: Starts of every case; the worst one counts.
        updates: Of the small problems.
        width: Of the language model.
        language_updates: Of the language model.
    """

    seeds: int = 5
    updates: int = 1000
    width: int = 128
    language_updates: int = 100


FULL = Scale()
QUICK = Scale(seeds=2, updates=60, width=64, language_updates=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure.

    Args:
        problem: What was trained.
        case: By which optimizer.
        precision: Of MLX's side.
        what: Which sequence, or which loss.
        updates: After how many updates.
        ours: How far MLX is from PyTorch (its float64, unless ``what`` says otherwise).
        theirs: How far PyTorch's own float32 is from its float64; None where that is no measure.
        by: What the limit is for: ``ours``, or the ratio ours / theirs.
        limit: The bound; None if the figure is only reported.
        curves: The same after fewer updates, for the plot: by ``"MLX"`` and ``"PyTorch"``.
    """

    problem: str
    case: str
    precision: Literal["float32", "float64"]
    what: str
    updates: int
    ours: float
    theirs: float | None = None
    by: Literal["distance", "ratio"] = "distance"
    limit: float | None = None
    curves: Curves = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Ours over theirs."""
        return self.ours / self.theirs if self.theirs else None

    @property
    def passed(self) -> bool | None:
        """Whether the bound holds; None without one."""
        if self.limit is None:
            return None
        held = self.ours if self.by == "distance" else self.ratio
        return held is not None and held <= self.limit

    @property
    def limit_text(self) -> str:
        """The bound for a table."""
        return "–" if self.limit is None else f"{'ratio ' if self.by == 'ratio' else ''}≤ {self.limit:g}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"ratio": self.ratio, "passed": self.passed}
