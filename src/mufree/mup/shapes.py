"""Base shapes: which axes of which parameter are widths, and how wide the base model is there.

Invariants: an axis is a *width* (infinite) exactly if base and delta differ on it; the base size of a finite axis
is kept where it is known, so that a model with another vocabulary is not taken for a wider one. A ``.bsh`` file is
microsoft/mup's own YAML: a number is the base size of a width, ``null`` a finite axis.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import Reasons, ShapeMismatch, refuse
from . import bsh
from .forward import forward_multipliers
from .walk import leaves, named

NOTHING: Mapping[str, Any] = MappingProxyType({})
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Dim:
    """One axis of a target parameter.

    Args:
        base: Its size in the base model, ``None`` if the axis is finite.
        size: Its size in the target model.
    """

    base: int | None
    size: int

    @property
    def infinite(self) -> bool:
        """Whether the axis scales with width."""
        return self.base is not None

    @property
    def multiplier(self) -> float:
        """m, the target's size over the base's; 1 for a finite axis."""
        return 1.0 if self.base is None else self.size / self.base


@dataclass(frozen=True, slots=True)
class BaseShapes(Mapping[str, tuple[int | None, ...]]):
    """The base size of every width, by parameter path.

    Args:
        widths: For each parameter the base size of each axis, ``None`` for a finite axis.
        sizes: All base sizes, finite ones too, where known (a ``.bsh`` file does not hold them).
        forward: The base model's own forward multipliers by path pattern or ``readout``, where it has any.

    Example:
        >>> import tempfile
        >>> from mufree import BaseShapes, make_base_shapes
        >>> shapes = make_base_shapes({"w": (64, 8)}, {"w": (128, 8)})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shapes.save(f"{folder}/base.bsh")
        ...     BaseShapes.load(f"{folder}/base.bsh")["w"]
        (64, None)

    References:
        microsoft/mup 1.0.0, ``mup.shape``: the file's format, and what makes an axis a width.
    """

    widths: Mapping[str, tuple[int | None, ...]]
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    forward: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, path: str) -> tuple[int | None, ...]:
        return self.widths[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.widths)

    def __len__(self) -> int:
        return len(self.widths)

    def dims(self, target: object) -> dict[str, tuple[Dim, ...]]:
        """The axes of every parameter of a target model, each beside its base size.

        Args:
            target: A model, a tree of arrays or shapes by path.

        Raises:
            ShapeMismatch: Paths or ranks differ, or a finite axis has another size than in the base model.
        """
        found = {leaf.path: leaf.shape for leaf in leaves(target)}
        problems = Reasons()
        _same_paths(self.widths, found, "base shapes", "model", problems)
        for path, shape in found.items():
            if path in self.widths:
                self._compare(path, shape, problems)
        problems.refuse_if_any(ShapeMismatch)
        return {p: tuple(map(Dim, self.widths[p], shape)) for p, shape in found.items()}

    def _compare(self, path: str, shape: tuple[int, ...], problems: Reasons) -> None:
        base = self.widths[path]
        if len(base) != len(shape):
            problems.add("rank", path, f"has {len(shape)} axes in the model and {len(base)} in the base shapes")
            return
        for axis, (size, width, known) in enumerate(zip(shape, base, self.sizes.get(path, base), strict=True)):
            if width is None and known is not None and known != size:
                problems.add(
                    "finite_axis",
                    path,
                    f"axis {axis} is {known} in the base model and {size} here, but did not change between base and "
                    "delta, so it is no width; make it equal, or make base shapes whose delta differs on it",
                )

    def reordered(self, axes: Mapping[str, tuple[int, ...]]) -> BaseShapes:
        """The same shapes with the axes of some parameters in another order.

        PyTorch keeps a convolution's weight as (out, in, *kernel), MLX as (out, *kernel, in): for a 2-D one read
        from a PyTorch file, ``{"conv.weight": (0, 2, 3, 1)}``.

        Args:
            axes: For each path, the old axis that comes to each place.

        Raises:
            Refused: An unknown path, or numbers that are no order of its axes.
        """
        problems = Reasons()
        for path, order in axes.items():
            if path not in self.widths:
                problems.add("unknown_path", path, "is not among the base shapes")
            elif sorted(order) != list(range(len(self.widths[path]))):
                problems.add("axes", path, f"{order!r} is no order of its {len(self.widths[path])} axes")
        problems.refuse_if_any()
        widths = {p: tuple(w[i] for i in axes.get(p, range(len(w)))) for p, w in self.widths.items()}
        sizes = {p: tuple(w[i] for i in axes.get(p, range(len(w)))) for p, w in self.sizes.items()}
        return BaseShapes(widths, sizes, self.forward)

    def save(self, path: str | Path) -> None:
        """Write a ``.bsh`` file that microsoft/mup reads too; saving what was loaded gives the same bytes.

        Raises:
            OSError: It cannot be written.
        """
        Path(path).write_text(bsh.dump(self.widths, self.forward), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> BaseShapes:
        """Read a ``.bsh`` file, written here or by microsoft/mup.

        Raises:
            Refused: The file is damaged, or no mapping of paths to lists of whole numbers and ``null``.
        """
        widths, forward = bsh.read(path)
        return cls(widths, {}, forward)


def make_base_shapes(base: Any, delta: Any = None, *, base_width: int = 64) -> BaseShapes:
    """Find the widths by comparing a base model with a second one that differs in every width.

    No array is evaluated: MLX arrays are lazy, so neither model takes memory.

    Args:
        base: The model that the learning rate is tuned on: an MLX module, a tree of arrays, or ``{path: shape}``;
            or, without ``delta``, a factory that makes the model at a given width.
        delta: The same at another size of every width.
        base_width: The width that the factory is first called with; the delta model is twice as wide.

    Returns:
        The base size of every axis that differs.

    Raises:
        ShapeMismatch: The two have other paths or ranks, or differ nowhere.
        Refused: ``delta`` is missing and ``base`` is no factory, or one of them is no model.

    Warns:
        UserWarning: ``delta`` is narrower than ``base``, as if they were swapped.

    Example:
        >>> from mufree import make_base_shapes
        >>> shapes = make_base_shapes({"w": (64, 8)}, {"w": (128, 8)})
        >>> shapes["w"]
        (64, None)
    """
    if isinstance(delta, int) and _is_factory(base):
        refuse(
            "delta", "delta", f"{delta!r} is no model; for the width the factory starts from write base_width={delta!r}"
        )
    if delta is None:
        if not _is_factory(base):
            refuse("delta", "delta", "is missing: give a second model that differs in every width, or a factory")
        if type(base_width) is not int or base_width < 1:
            refuse("out_of_range", "base_width", f"{base_width!r} is no width; give a whole number above 0")
        make: Callable[[int], Any] = base
        base, delta = make(base_width), make(2 * base_width)
    _check_models(base, delta)
    before = {leaf.path: leaf.shape for leaf in leaves(base)}
    after = {leaf.path: leaf.shape for leaf in leaves(delta)}
    problems = Reasons()
    _same_paths(before, after, "base", "delta", problems)
    for path in before.keys() & after.keys():
        if len(before[path]) != len(after[path]):
            problems.add("rank", path, f"has {len(before[path])} axes in base and {len(after[path])} in delta")
    if before == after:
        problems.add("no_width", "delta", "differs from base on no axis; make every width of it another size")
    problems.refuse_if_any(ShapeMismatch)
    widths = {
        path: tuple(b if b != d else None for b, d in zip(shape, after[path], strict=True))
        for path, shape in before.items()
    }
    both = (zip(shape, after[path], strict=True) for path, shape in before.items())
    if all(b >= d for sizes in both for b, d in sizes):
        warnings.warn("delta is narrower than base; they may be swapped, and base is the tuned one", stacklevel=2)
    return BaseShapes(widths, before, forward_multipliers(base))


def _check_models(base: object, delta: object) -> None:
    problems = Reasons()
    for name, model in (("base", base), ("delta", delta)):
        if isinstance(model, BaseShapes):
            problems.add(name, name, "is BaseShapes already; use it as it is")
        elif not leaves(model):
            problems.add(
                name, name, f"{named(model)} has no parameters; give a model, a tree of arrays or {{path: shape}}"
            )
    problems.refuse_if_any()


def _is_factory(value: object) -> bool:
    return isinstance(value, type) or (callable(value) and not hasattr(value, "named_modules"))


def _same_paths(left: Mapping[str, Any], right: Mapping[str, Any], one: str, other: str, problems: Reasons) -> None:
    for here, there, has, lacks in ((left, right, one, other), (right, left, other, one)):
        only = [path for path in here if path not in there]
        if only:
            shown = ", ".join(only[:_SHOWN]) + (f" and {len(only) - _SHOWN} more" if len(only) > _SHOWN else "")
            problems.add(
                "paths", f"only in {has}", f"{shown}; {lacks} has to hold the same parameters at another width"
            )
