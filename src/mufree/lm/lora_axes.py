"""The factors that mlx-lm's adapters train, and what their axes are in the base model, which has no adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import Reasons
from ..mup import BaseShapes
from ..mup.shapes import Dim
from ..mup.walk import Leaf

A, B, M = "lora_a", "lora_b", "m"
"""The names of mlx-lm's factors, and of DoRA's magnitude."""

_HOLDERS = ("linear", "embedding")
# By what holds the base weight and its number of axes: the letters of its axes (see mufree.mup.layouts), then those of
# the factors in the same letters; r is the rank.
_AXES: Mapping[tuple[str, int], tuple[str, Mapping[str, str]]] = {
    ("linear", 2): ("oi", {A: "ir", B: "ro", M: "o"}),
    ("linear", 3): ("eoi", {A: "eri", B: "eor"}),
    ("embedding", 2): ("io", {A: "ir", B: "ro", M: "i"}),
}


def is_adapter(leaf: Leaf) -> bool:
    """Whether a parameter is an adapter's own, and not the weight that it adapts."""
    return leaf.name in (A, B, M) and holder(leaf) != ""


def holder(leaf: Leaf) -> str:
    """The attribute under which a parameter's module keeps the layer that it adapts, or nothing."""
    return next((name for name in _HOLDERS if name in (leaf.owner or ())), "")


def module_of(leaf: Leaf) -> str:
    """The path of the module that holds a parameter."""
    return leaf.path.removesuffix(leaf.name).removesuffix(".")


def base_path(leaf: Leaf) -> str:
    """Where the base model keeps the weight that a parameter is, or adapts."""
    if is_adapter(leaf):
        return f"{module_of(leaf)}.weight".removeprefix(".")
    *outer, inner, name = ("", *leaf.path.split("."))
    return ".".join([*outer, name]).removeprefix(".") if inner in _HOLDERS else leaf.path


def itself(found: tuple[Leaf, ...], forward: Mapping[str, float]) -> BaseShapes:
    """The shapes of a base that is the model itself, in which nothing scales."""
    ranks = {base_path(leaf): _base_rank(leaf) for leaf in found}
    return BaseShapes({path: (None,) * rank for path, rank in ranks.items()}, {}, forward)


def carries_multiplier(leaf: Leaf) -> bool:
    """Whether a parameter stands for a multiplier of its layer's output: of an adapter's, DoRA's m, or else B."""
    return not is_adapter(leaf) or leaf.name == (M if M in leaf.owner else B)


def dims_of(leaf: Leaf, shapes: BaseShapes, problems: Reasons) -> tuple[Dim, ...] | None:
    """A parameter's axes, each beside its base size; None if a problem was added."""
    path = base_path(leaf)
    if path not in shapes:
        problems.add("paths", leaf.path, f"the base has no {path}; it has to be the same model at another width")
        return None
    widths = shapes[path]
    sizes = shapes.sizes.get(path, widths)
    if is_adapter(leaf):
        letters, factors = _AXES.get((holder(leaf), len(widths)), ("", {}))
        own = factors.get(leaf.name, "")
        if len(own) != len(leaf.shape):
            problems.add("unknown_adapter", leaf.path, f"{leaf.shape} is no factor of a weight of {len(widths)} axes")
            return None
        known: dict[str, Any] = dict(zip(letters, zip(widths, sizes, strict=True), strict=True)) | {"r": (None, None)}
        widths, sizes = (tuple(known[letter][n] for letter in own) for n in (0, 1))
    if len(widths) != len(leaf.shape):
        problems.add("rank", leaf.path, f"has {len(leaf.shape)} axes, {path} of the base {len(widths)}")
        return None
    for axis, (width, size, here) in enumerate(zip(widths, sizes, leaf.shape, strict=True)):
        if width is None and size is not None and size != here:
            problems.add(
                "finite_axis", leaf.path, f"axis {axis} is {here} and {size} in the base, but no width; make it equal"
            )
    return tuple(Dim(width, here) for width, here in zip(widths, leaf.shape, strict=True))


def _base_rank(leaf: Leaf) -> int:
    return len(leaf.owner[holder(leaf)].weight.shape) if is_adapter(leaf) else len(leaf.shape)
