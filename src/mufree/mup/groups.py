"""Groups of parameters that share a rate, eps and decay: the user's own, each split by width multiplier.

Invariant: every parameter is in exactly one group, and no group is empty. As in microsoft/mup, hidden tensors are split
by their multiplier, and tensors whose factors are the same and whose rate is not that of a hidden one stay together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..errors import Reasons, ShapeMismatch, shown
from ..sizes import check_sizes, no_scales
from .scales import Scale, Scales
from .shapes import NOTHING
from .walk import Leaf, is_module, leaves

_OWN_KEYS = ("match", "learning_rate", "weight_decay", "eps")


@dataclass(frozen=True, slots=True)
class ParamGroup:
    """Parameters that are optimized alike.

    Args:
        kind: Their kind; ``vector-like`` if several kinds share all factors.
        width_mult: What the base rate is divided by.
        learning_rate: Their learning rate.
        weight_decay: Their weight decay.
        eps: Their eps where one was given. Without one it is the factor on eps, such as 0.125, and no eps to train
            with: multiply it by your own.
        paths: Their paths, in the tree's order.
        init: Their factor on the base model's init std.
        parameters: The number of entries they have together.
        lr_factor: Their factor on the learning rate.
        decay_factor: Their factor on the weight decay.
        eps_factor: Their factor on eps.
        options: Other keys of the user's group.

    Example:
        >>> from mufree import ParamGroup
        >>> group = ParamGroup("hidden", 8.0, 0.125, 0.8, 8e-9, ("layers.0.weight", "layers.1.weight"))
        >>> group.tensors
        2
    """

    kind: str
    width_mult: float
    learning_rate: float
    weight_decay: float
    eps: float
    paths: tuple[str, ...]
    init: float = 1.0
    parameters: int = 0
    lr_factor: float = 1.0
    decay_factor: float = 1.0
    eps_factor: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> int:
        """How many tensors it has."""
        return len(self.paths)


def param_groups(
    params: Any,
    scales: Scales,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    eps: float = 1.0,
    groups: Sequence[Mapping[str, Any]] | None = None,
    decoupled_wd: bool = False,
) -> tuple[ParamGroup, ...]:
    """Split parameters into groups of one rate, eps and decay.

    Args:
        params: The parameters to optimize: ``model.trainable_parameters()``, a model, or any tree.
        scales: Their scales.
        learning_rate: The base model's learning rate.
        weight_decay: The base model's weight decay (decay is lr·wd·y).
        eps: The base model's eps, such as 1e-8. With the default, 1, ``eps`` of the groups is no eps to train with, but
            the factor on it, as in ``eps_factor``.
        groups: The user's own groups: ``match`` is a path pattern or several, or a function of path and array;
            ``learning_rate``, ``weight_decay`` and ``eps`` replace the above, other keys are handed on as ``options``.
            The first that matches takes a parameter; the rest form one more group.
        decoupled_wd: Leave the decay unscaled, for an optimizer whose decay is not multiplied by the rate.

    Returns:
        The groups, without empty ones.

    Raises:
        ShapeMismatch: A parameter has no scale, or the scales are those of a model of other widths.
        Refused: A group without a match or with nothing to take, a number that is none, or no scales.

    Example:
        >>> from mufree import make_base_shapes, mup_scales, param_groups
        >>> base, delta, target = ({"body": (n, n), "gain": (n,)} for n in (64, 128, 512))
        >>> scales = mup_scales(target, make_base_shapes(base, delta))
        >>> for group in param_groups(target, scales, learning_rate=0.5, weight_decay=0.1):
        ...     group.paths, group.learning_rate, group.weight_decay
        (('body',), 0.0625, 0.8)
        (('gain',), 0.5, 0.1)

    References:
        Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, tables 3 and 8 and appendix B.3.
        microsoft/mup 1.0.0, ``mup.optim``.
    """
    given = {"learning_rate": learning_rate, "weight_decay": weight_decay, "eps": eps}
    problems = Reasons()
    check_scales(scales, problems)
    check_numbers("", given, problems)
    own = checked_groups(groups, problems)
    problems.refuse_if_any()
    # What is frozen and has no scale is no one's to train; what has one may be unfrozen later.
    found = [leaf for leaf in leaves(params) if leaf.path in scales or not leaf.frozen]
    _check_paths(found, scales, problems)
    problems.refuse_if_any(ShapeMismatch)
    whole = {leaf.path for leaf in leaves(params)} if is_module(params) else None
    # What is frozen may have been quantised, which changes its shape.
    check_sizes(scales, {leaf.path: leaf.shape for leaf in found if not leaf.frozen}, model_paths=whole)
    result: list[ParamGroup] = []
    rest = list(found)
    for index, group in enumerate(own):
        matched = {leaf.path for leaf in found if _matches(group["match"], leaf)}
        mine = [leaf for leaf in rest if leaf.path in matched]
        rest = [leaf for leaf in rest if leaf.path not in matched]
        if not mine:
            why = "matches only what earlier groups have taken; put it first" if matched else "matches no parameter"
            problems.add("no_match", f"groups[{index}]", f"{group['match']!r} {why}")
        result += _split(mine, scales, {**given, **group}, decoupled_wd)
    problems.refuse_if_any()
    return (*result, *_split(rest, scales, given, decoupled_wd))


def check_scales(scales: object, problems: Reasons) -> None:
    """Collect anything that is no scales."""
    if not isinstance(scales, Scales):
        problems.add("scales", "scales", no_scales(scales) or f"{type(scales).__name__} holds no scales; give Scales")


def checked_groups(groups: object, problems: Reasons) -> Sequence[Mapping[str, Any]]:
    """The user's groups, none if they are not what they should be; the problems are collected."""
    listed = isinstance(groups, list | tuple) and all(isinstance(group, Mapping) for group in groups)
    if groups is not None and not listed:
        problems.add("groups", "groups", f"{groups!r} is no list of groups, each a dict with 'match'")
    own: Sequence[Mapping[str, Any]] = groups if listed else ()  # type: ignore[assignment]
    for index, group in enumerate(own):
        check_numbers(f"groups[{index}].", group, problems)
        match = group.get("match")
        several = isinstance(match, list | tuple) and all(isinstance(pattern, str) for pattern in match)
        if not (isinstance(match, str) or several or callable(match)):
            problems.add(
                "group", f"groups[{index}]", "has no 'match': a path pattern, a list of several, or a function"
            )
    return own


def check_numbers(prefix: str, settings: Mapping[str, Any], problems: Reasons) -> None:
    """Collect every rate, decay or eps that is no finite number ≥ 0."""
    for name in ("learning_rate", "weight_decay", "eps"):
        value = settings.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            problems.add("out_of_range", f"{prefix}{name}", f"{value!r}; give a finite number ≥ 0")


def _check_paths(found: Sequence[Leaf], scales: Scales, problems: Reasons) -> None:
    unknown = [leaf.path for leaf in found if leaf.path not in scales]
    if not unknown:
        return
    here = {leaf.path for leaf in found}
    unused = [path for path in scales if path not in here]
    old = f"; scales without a parameter: {shown(unused)}" if unused else ""
    problems.add(
        "paths",
        shown(unknown),
        f"no scale is known{old}. Scales go by path: make them anew with mup_scales for the model as it is now",
    )


def _matches(match: Any, leaf: Leaf) -> bool:
    if callable(match):
        return bool(match(leaf.path, leaf.value))
    patterns = (match,) if isinstance(match, str) else match
    return any(fnmatchcase(leaf.path, pattern) for pattern in patterns)


def _split(found: Sequence[Leaf], scales: Scales, given: Mapping[str, Any], decoupled_wd: bool) -> list[ParamGroup]:
    together: dict[tuple[Any, ...], list[Leaf]] = {}
    for leaf in found:
        scale = scales[leaf.path]
        key = (_class(scale, scales.family), scale.lr, scale.weight_decay, scale.eps)
        together.setdefault(key, []).append(leaf)
    options = {key: value for key, value in given.items() if key not in _OWN_KEYS}
    return [_group(group, scales, given, decoupled_wd, options) for group in together.values()]


def _class(scale: Scale, family: str) -> str:
    """What may share a group: microsoft/mup keeps tensors with two widths apart from all others."""
    mixes = scale.kind != "hidden" and (scale.lr == 1 if family == "adam" else scale.kind != "scalar-like")
    return "" if mixes else scale.kind


def _group(
    found: Sequence[Leaf], scales: Scales, given: Mapping[str, Any], decoupled_wd: bool, options: dict[str, Any]
) -> ParamGroup:
    first = scales[found[0].path]
    kinds = {scales[leaf.path].kind for leaf in found}
    decay = 1.0 if decoupled_wd else first.weight_decay
    return ParamGroup(
        kind=first.kind if len(kinds) == 1 else "vector-like",
        width_mult=1.0 / first.lr,
        learning_rate=given["learning_rate"] * first.lr,
        weight_decay=given["weight_decay"] * decay,
        eps=given["eps"] * first.eps,
        paths=tuple(leaf.path for leaf in found),
        init=first.init,
        parameters=sum(math.prod(leaf.shape) for leaf in found),
        lr_factor=first.lr,
        decay_factor=decay,
        eps_factor=first.eps,
        options=options or NOTHING,
    )
