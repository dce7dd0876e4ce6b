"""Learning-rate transfer: the same grid of rates at several widths, with μP and without."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import refuse
from ..mup.verdict import Sweep
from ..recipe import Recipe, seconds_text
from .cells import Parametrisation
from .judgement import Judgement, judge_transfer
from .kept import read_study, write_study
from .store import Row

STUDY = "transfer"
LOSS = "loss"
"""The loss that the verdict is on: at ``x``, on fixed batches."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A finished grid, its verdict, plot and recipe.

    Args:
        rows: One for each cell.
        base_width: Where the rate is tuned.
        context: What a recipe takes over besides the rate: settings, base model's config and shapes, tokenizer.
    """

    rows: Sequence[Row]
    base_width: int
    context: Mapping[str, Any] = field(default_factory=dict)

    def sweeps(self, parametrisation: Parametrisation) -> list[Sweep]:
        """One sweep a width, the base width first and then by width; mean losses over the seeds."""
        widths = sorted({row["width"] for row in self.rows}, key=lambda width: (width != self.base_width, width))
        found = [
            Sweep(width, {e["rate"]: e["loss"] for e in self.table() if _is(e, width, parametrisation)})
            for width in widths
        ]
        return [sweep for sweep in found if sweep.losses]

    def table(self) -> list[dict[str, Any]]:
        """One entry for each parametrisation, width and rate.

        Each has ``loss`` (mean; None if a seed diverged), ``deviation`` (over the seeds; None for fewer than two),
        ``seeds`` and ``diverged`` (how many did). Only seeds that were trained at every rate of a width count, for
        the mean of more seeds at one rate would not be comparable.
        """
        groups: dict[tuple[str, int, float], dict[int, Row]] = {}
        for row in self.rows:
            groups.setdefault((row["parametrisation"], row["width"], row["rate"]), {})[row["seed"]] = row
        shared: dict[tuple[str, int], set[int]] = {}
        for (kind, width, _), rows in groups.items():
            shared[kind, width] = shared.get((kind, width), set(rows)) & rows.keys()
        return [
            _entry(key, [rows[seed] for seed in sorted(shared[key[:2]])])
            for key, rows in sorted(groups.items())
            if shared[key[:2]]
        ]

    @property
    def judgement(self) -> Judgement:
        """Every gate."""
        return judge_transfer(self.sweeps("mup"), self.sweeps("sp"))

    @property
    def passed(self) -> bool:
        """Whether the rate transfers, and the control does not."""
        return self.judgement.passed

    @property
    def verdict(self) -> str:
        """The verdict in a sentence; of one seed that did not pass, with what settles it."""
        judged = self.judgement
        if judged.passed or len({row["width"] for row in self.rows}) == 1 or any(row["seed"] for row in self.rows):
            return judged.sentence
        updates = max(row["updates"] for row in self.rows)
        return (
            f"{judged.sentence} But one seed of {updates} updates can turn this verdict: the full grid settles it, "
            "mufree transfer without --quick, with two seeds or more."
        )

    @property
    def costs(self) -> str:
        """What the sweep at the base width took, and what one at the widest takes."""
        widest = max(row["width"] for row in self.rows)
        times = {width: self._seconds(width) for width in (self.base_width, widest)}
        texts = [f"at width {width} {seconds_text(seconds)}" for width, seconds in times.items()]
        return f"the sweep under μP took {', '.join(texts)}"

    def _seconds(self, width: int) -> float:
        return float(sum(row["seconds"] for row in self.rows if row["width"] == width and _mup(row)))

    def recipe(self) -> Recipe:
        """The rate tuned at the base width, with what it depends on.

        Raises:
            Refused: If the best rate at the base width is not inside the grid.
        """
        sweeps = self.sweeps("mup")
        base = next((sweep for sweep in sweeps if sweep.width == self.base_width), None)
        if base is None or base.best is None or not base.interior:
            refuse("no_minimum", "recipe", judge_transfer([base] if base else []).sentence if base else "no base width")
        wider = [sweep.regret(base.best) for sweep in sweeps[1:]]
        return Recipe(
            rate=base.best,
            base_width=self.base_width,
            updates=max(row["updates"] for row in self.rows),
            seconds=round(self._seconds(self.base_width), 1),
            sweep=self.table(),
            verdict=self.verdict,
            passed=self.passed if wider else None,
            regret=_finite(max(wider)) if wider else None,
            **_context(self.context, base.best),
        )

    def plot(self, path: str | Path) -> Path:
        """Loss against rate, one curve a width, μP and SP side by side.

        Raises:
            Refused: If matplotlib is not installed.
        """
        from .plots import plot_transfer

        return plot_transfer(self, Path(path))

    def save(self, path: str | Path) -> None:
        """Write everything as one JSON file, from which :meth:`load` makes it again.

        Raises:
            OSError: It cannot be written.
        """
        head = {
            "study": STUDY,
            "base_width": self.base_width,
            "passed": self.passed,
            "verdict": self.verdict,
            "costs": self.costs,
            "context": dict(self.context),
        }
        write_study(Path(path), head, list(self.rows))

    @classmethod
    def load(cls, path: str | Path) -> Transfer:
        """Read what :meth:`save` wrote.

        Raises:
            Refused: If it is something else.
        """
        content = read_study(Path(path), STUDY)
        return cls(rows=content["rows"], base_width=content["base_width"], context=content["context"])


def _context(context: Mapping[str, Any], rate: float) -> dict[str, Any]:
    settings = {**context["settings"], "lr": rate} if "settings" in context else {}
    empty: dict[str, Any] = {"model_config": {}, "base_shapes": {}, "tokenizer_hash": ""}
    return {"settings": settings, **{name: context.get(name, value) for name, value in empty.items()}}


def _is(entry: Mapping[str, Any], width: int, parametrisation: str) -> bool:
    return bool(entry["width"] == width and entry["parametrisation"] == parametrisation)


def _mup(row: Row) -> bool:
    return bool(row["parametrisation"] == "mup")


def _entry(key: tuple[str, int, float], rows: Sequence[Row]) -> dict[str, Any]:
    losses = [row["losses"][LOSS] for row in rows]
    whole = all(loss is not None for loss in losses)
    return {
        "parametrisation": key[0],
        "width": key[1],
        "rate": key[2],
        "loss": statistics.fmean(losses) if whole else None,
        "deviation": statistics.stdev(losses) if whole and len(losses) > 1 else None,
        "seeds": len(rows),
        "diverged": sum(loss is None for loss in losses),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
