"""A table of scales for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .walk import skeleton

if TYPE_CHECKING:
    from .scales import Scale, Scales
    from .shapes import Dim

_HEAD = ("parameter", "shape", "kind", "m_in", "m_out", "A", "init", "lr", "eps", "decay", "")


_LEGEND = (
    "m_in, m_out: how many times as wide as the base model. A: the forward multiplier, relative to the base model's.\n"
    "init, lr, eps, decay: factors on the base model's std of the start, learning rate, eps and weight decay."
)
_PLACES = 6


def table(scales: Scales) -> str:
    """One line a parameter; layers that repeat are one line, with ``*`` if all places of a list are alike."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for path, scale in scales.items():
        row = (skeleton(path), _shape(scales.dims.get(path, ())), *_cells(scale))
        rows.setdefault(row, []).append(path)
    mixed = Counter(row[0] for row in rows)
    lines = [_HEAD, *((_paths(row[0], paths, mixed[row[0]] > 1), *row[1:]) for row, paths in rows.items())]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    text = "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)
    return f"{text}\n\n{_LEGEND}\n{_summary(scales)}"


def _paths(starred: str, paths: list[str], mixed: bool) -> str:
    """``layers.*.weight (2×)``, the path itself, or ``layers.{0,2}.weight (2×)`` where other places differ."""
    if len(paths) == 1:
        return paths[0]
    if mixed:
        columns = [list(dict.fromkeys(parts)) for parts in zip(*(path.split(".") for path in paths), strict=True)]
        starred = ".".join(column[0] if len(column) == 1 else _listed(column) for column in columns)
    return f"{starred} ({len(paths)}×)"


def _listed(places: list[str]) -> str:
    return "{" + ",".join(places[:_PLACES]) + (",…" if len(places) > _PLACES else "") + "}"


def _cells(scale: Scale) -> tuple[str, ...]:
    numbers = (
        scale.m_in, scale.m_out, scale.multiplier, scale.init, scale.lr, scale.eps, scale.weight_decay,
    )  # fmt: skip
    return (scale.kind, *(f"{number:.6g}" for number in numbers), scale.note)


def _summary(scales: Scales) -> str:
    numbers = [n for s in scales.values() for n in (s.m_in, s.m_out, s.multiplier, s.init, s.lr, s.eps, s.weight_decay)]
    lines = [f"For optimizers like {scales.family}. Readout: {_readout(scales)}."]
    if all(number == 1 for number in numbers):
        lines.append("Every multiplier is 1: the model has its base's size, and this is standard parametrisation.")
    finite = sorted({dim.size for dims in scales.dims.values() for dim in dims if not dim.infinite})
    if finite:
        lines.append(f"Taken as sizes that do not scale: {', '.join(map(str, finite))}.")
    return "\n".join(lines)


def _shape(dims: tuple[Dim, ...]) -> str:
    return " × ".join(f"{dim.base}→{dim.size}" if dim.infinite else str(dim.size) for dim in dims)


def _readout(scales: Scales) -> str:
    readout = scales.readout
    if readout.way == "no readout":
        return "none found"
    if readout.way == "frozen head":
        return "the head is not trained, and stays as it is"
    heads = ", ".join(readout.heads)
    if readout.way == "untied head":
        multiplied = any(scales[head].multiplier != 1 for head in readout.heads)
        return f"untied head {heads}, by {'the multiplier A of the model' if multiplied else 'init and rates alone'}"
    if readout.gains:
        return f"tied head {heads}, through the gain of {', '.join(readout.gains)} (× {readout.share:.6g})"
    if any("own multiplier" in note for note in readout.notes.values()):
        return f"tied head {heads}, through a multiplier of the model's own"
    return f"tied head {heads}, which lacks nothing at this width"
