"""Whether scales are for the very model that they are used on: every width has the size they were worked out for.

Scales go by path, and a model of another width has the same paths.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from .errors import Reasons, ShapeMismatch, shown

_REMEDY = "make scales of this very model: mup_scales(model, base_shapes), or parametrize for a fresh one"


def check_sizes(
    scales: Any, shapes: Mapping[str, tuple[int, ...]], *, model_paths: Collection[str] | None = None
) -> None:
    """Refuse scales of another model, as far as they know of what sizes it was.

    Axes that are no widths are not compared: no multiplier depends on them.

    Args:
        scales: Scales, whose ``dims`` are the axes by path; those without ``dims`` are taken as they are.
        shapes: The shapes of the parameters that are trained, all or some.
        model_paths: All paths of the model, if they are known: one that only the scales have is another model's.

    Raises:
        ShapeMismatch: With the paths at fault, the sizes and what to do.
    """
    dims: Mapping[str, tuple[Any, ...]] = getattr(scales, "dims", None) or {}
    problems = Reasons()
    other = [path for path, shape in shapes.items() if path in dims and not _same(dims[path], shape)]
    if other:
        here = shown([shapes[path] for path in other])
        there = shown([tuple(dim.size for dim in dims[path]) for path in other])
        message = f"of sizes {here} here, while the scales were made for {there}; {_REMEDY}"
        problems.add("widths", shown(other), message)
    absent = [path for path in dims if path not in model_paths] if model_paths is not None else []
    if absent:
        problems.add("paths", shown(absent), f"has a scale, but is not in the model, so they are another's; {_REMEDY}")
    problems.refuse_if_any(ShapeMismatch)


def no_scales(scales: Any) -> str | None:
    """What to say if scales are something else, None if they are some: they name the family they were made for."""
    if getattr(scales, "family", None) is not None:
        return None
    given = type(scales).__name__
    what = "these are BaseShapes, not Scales" if given == "BaseShapes" else f"a {given} holds no scales"
    return f"{what}; parametrize(model, base_shapes) gives them, or mup_scales for a model that has started"


def _same(dims: tuple[Any, ...], shape: tuple[int, ...]) -> bool:
    if len(dims) != len(shape):
        return False
    return all(dim.size == size for dim, size in zip(dims, shape, strict=True) if dim.infinite)
