"""Which kind a parameter is: from the module that holds it and from which of its axes are widths.

Invariant: a kind follows from *(is fan-in infinite?, is fan-out infinite?)*, never from the number of widths alone:
an embedding (vocabulary, d) and a readout (vocabulary, d) have the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import Reasons
from .layouts import Law, Layout, fits, layout_of, spread
from .rules import KINDS, Kind
from .shapes import Dim

_MATRIX_WIDTHS = 2


@dataclass(frozen=True, slots=True)
class Start:
    """How a parameter was drawn: its law, the target's fan, and by how much the law shrank it already."""

    law: Law
    fan: int = 1
    shrunk: float = 1.0
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """A parameter's kind, its width multipliers and its initialiser."""

    kind: Kind
    m_in: float
    m_out: float
    start: Start


def kind_of(fan_in_infinite: bool, fan_out_infinite: bool) -> Kind:
    """The kind of a tensor that maps between finite or infinite dimensions."""
    if fan_in_infinite:
        return "hidden" if fan_out_infinite else "output-like"
    return "input-like" if fan_out_infinite else "scalar-like"


def place(
    path: str,
    dims: tuple[Dim, ...],
    *,
    classes: tuple[str, ...],
    name: str,
    siblings: Mapping[str, tuple[Dim, ...]],
    override: str | None,
    problems: Reasons,
) -> Placement | None:
    """Decide one parameter.

    Args:
        path: Where it is, for messages.
        dims: Its axes.
        classes: Its module's classes, nearest first; empty in a bare tree.
        name: Its attribute in that module.
        siblings: The axes of the module's own parameters by name.
        override: A kind, or a layout in letters (see :mod:`mufree.mup.layouts`), that wins over what is known.
        problems: Collects what cannot be decided.

    Returns:
        ``None`` if a problem was added.
    """
    layout = layout_of(classes, name, len(dims))
    if override is not None:
        return _overridden(path, dims, override, _start_of(layout, dims, classes, siblings), problems)
    wide = [axis for axis, dim in enumerate(dims) if dim.size > 1]
    if layout is None and len(wide) == 1 and any(c.startswith("mlx_lm:") for c in classes):
        # A vector kept with axes of size 1 for broadcasting.
        layout = Layout("*", name, "".join("o" if axis in wide else "." for axis in range(len(dims))), "unknown")
    if layout is None:
        return _by_axes(path, dims, classes, problems)
    return _lettered(path, dims, layout.axes, _start_of(layout, dims, classes, siblings), problems)


def _start_of(
    layout: Layout | None,
    dims: tuple[Dim, ...],
    classes: tuple[str, ...],
    siblings: Mapping[str, tuple[Dim, ...]],
) -> Start:
    """How the module's initialiser draws it, which no override changes."""
    if layout is None:
        return Start("unknown")
    source = siblings.get(layout.of, dims) if layout.of else dims
    source_layout = layout_of(classes, layout.of, len(source)) if layout.of else layout
    letters = spread((source_layout or layout).axes, len(source))
    fan = [d for d, letter in zip(source, letters, strict=True) if letter in layout.fan]
    shrunk = math.prod(d.multiplier for d in fan) ** -0.5
    return Start(layout.law, math.prod(d.size for d in fan), shrunk, layout.keeps_start)


_FINITE = {
    "k": ("a kernel axis", "an axis order (out, in, *kernel) as PyTorch's is turned by BaseShapes.reordered"),
    "e": (
        "the number of experts",
        "together with fan-in and fan-out that would be three infinite axes; keep their number fixed",
    ),
    ".": ("neither fan-in nor fan-out by its letter", "give it one of the letters i and o"),
}


def _lettered(path: str, dims: tuple[Dim, ...], axes: str, start: Start, problems: Reasons) -> Placement | None:
    letters = spread(axes, len(dims))
    for axis, (dim, letter) in enumerate(zip(dims, letters, strict=True)):
        if letter in _FINITE and dim.infinite:
            what, remedy = _FINITE[letter]
            problems.add("finite_axis", path, f"axis {axis} is {what} and must not scale ({_sizes(dim)}); {remedy}")
            return None
    ins = [d for d, letter in zip(dims, letters, strict=True) if letter in "ij"]
    outs = [d for d, letter in zip(dims, letters, strict=True) if letter == "o"]
    if sum(d.infinite for d in ins) > 1:
        problems.add("three_widths", path, "both fan-ins scale; no rule covers a product of two widths, name its kind")
        return None
    m_in, m_out = (math.prod(d.multiplier for d in side) for side in (ins, outs))
    kind = kind_of(any(d.infinite for d in ins), any(d.infinite for d in outs))
    return Placement(kind, m_in, m_out, start)


def _by_axes(path: str, dims: tuple[Dim, ...], classes: tuple[str, ...], problems: Reasons) -> Placement | None:
    widths = [axis for axis, dim in enumerate(dims) if dim.infinite]
    last = len(dims) - 1
    unknown = Start("unknown")
    if not widths:
        return Placement("scalar-like", 1.0, 1.0, unknown)
    if classes:
        problems.add(
            "unknown_module",
            path,
            f"{classes[0].split(':')[1]} is no layer whose axes are known, and its axes {widths} scale; say what it is "
            f"{_remedy(path, dims)}",
        )
        return None
    if len(widths) > _MATRIX_WIDTHS:
        problems.add("three_widths", path, f"axes {widths} all scale; no rule covers more than two widths")
        return None
    if len(widths) == _MATRIX_WIDTHS:
        return Placement("hidden", dims[widths[1]].multiplier, dims[widths[0]].multiplier, unknown)
    if widths[0] == last and len(dims) > 1:
        problems.add(
            "ambiguous",
            path,
            "only its last axis scales: an embedding (then 'input-like') or a readout (then 'output-like')? "
            f"Without its module only you can say; give overrides={{{path!r}: ...}}",
        )
        return None
    return Placement("input-like", 1.0, dims[widths[0]].multiplier, unknown)


def _overridden(path: str, dims: tuple[Dim, ...], override: str, start: Start, problems: Reasons) -> Placement | None:
    kind = next((k for k in KINDS if override in (k, k.removesuffix("-like"))), None)
    if kind is None:
        if set(override) <= set("ijokeh.") and fits(override, len(dims)):
            return _lettered(path, dims, override, start, problems)
        problems.add("override", path, f"{override!r} is neither {_allowed()} nor letters for its {len(dims)} axes")
        return None
    widths = [d.multiplier for d in dims if d.infinite]
    needed = {"hidden": 2, "input-like": 1, "output-like": 1, "scalar-like": 0}[kind]
    if kind != "scalar-like" and len(widths) != needed:
        problems.add("override", path, f"{kind} has {needed} axes that scale, this one {len(widths)}; use letters")
        return None
    m_in = widths[-1] if kind in ("hidden", "output-like") else 1.0
    m_out = widths[0] if kind in ("hidden", "input-like") else 1.0
    return Placement(kind, m_in, m_out, start)


def _remedy(path: str, dims: tuple[Dim, ...]) -> str:
    """The overrides that the axes allow."""
    widths, letters = sum(dim.infinite for dim in dims), "letters such as 'oi' (fan-out, fan-in)"
    if widths == _MATRIX_WIDTHS:
        return f"with overrides={{{path!r}: 'hidden'}}, or with {letters}"
    if widths == 1:
        return f"with overrides={{{path!r}: 'input-like'}} (or 'output-like', if the width is its fan-in)"
    return f"with {letters}"


def _allowed() -> str:
    return ", ".join(map(repr, KINDS))


def _sizes(dim: Dim) -> str:
    return f"{dim.base} in the base model, {dim.size} here"
