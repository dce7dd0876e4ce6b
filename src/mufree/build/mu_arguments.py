"""What the Mu optimizers may be asked for; every refusal before anything is built."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim

from mufree.errors import Reasons
from mufree.mup.groups import check_numbers, checked_groups
from mufree.mup.rules import Family
from mufree.schedule_free.base import ScheduleFree
from mufree.sizes import no_scales

_REFUSED = {
    optim.Muon: "scales its updates by each tensor's shape itself; μP on top would scale twice. Use MuAdam or MuSGD",
    optim.Adafactor: "takes its step relative to each tensor's size, which μP's rates do not cover. Use MuAdam",
    optim.AdaDelta: "takes the size of its steps from eps, which μP would change with the gradients'. Use MuAdam",
    optim.MultiOptimizer: "has rules of its own for each part; give MuAdam or MuSGD one rule and groups",
}
_FAMILY = {
    optim.SGD: "sgd",
    **dict.fromkeys((optim.Adam, optim.AdamW, optim.Adamax, optim.Lion, optim.RMSprop, optim.Adagrad), "adam"),
}
_GROUP_KEYS = ("match", "learning_rate", "weight_decay", "eps")


def check_arguments(
    scales: Any,
    family: Family,
    impl: type[optim.Optimizer],
    groups: Sequence[Mapping[str, Any]] | None,
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """Refuse what cannot be meant.

    Args:
        scales: The scales.
        family: The family that the caller is for.
        impl: The optimizer.
        groups: The user's groups.
        kwargs: Keywords for ``impl``.

    Returns:
        What ``impl`` takes with the default of each; one without a default is left out unless given.

    Raises:
        Refused: ``impl`` scales by itself or is of the other family, the scales are, a keyword reaches nobody, a
            number is none.
    """
    problems = Reasons()
    _check_impl(impl, family, problems)
    problems.refuse_if_any()
    none = no_scales(scales)
    if none is not None:
        problems.add("scales", "scales", none)
    elif scales.family != family:
        remedy = f"mup_scales(…, family={family!r}), of a fresh model with parametrize(…, family={family!r})"
        problems.add("family", "scales", f"made for {scales.family!r}; make them with {remedy}")
    named, takes_any = _keywords(impl)
    taken = {name: kwargs.get(name, default) for name, default in named.items()}
    taken = {name: value for name, value in taken.items() if value is not inspect.Parameter.empty}
    if "learning_rate" not in {**taken, **kwargs}:
        problems.add("learning_rate", "learning_rate", "is missing; give the base model's")
    _check_numbers(kwargs, problems)
    _check_keywords(impl, named, takes_any, checked_groups(groups, problems), kwargs, problems)
    problems.refuse_if_any()
    return taken


def _check_impl(impl: object, family: Family, problems: Reasons) -> None:
    if not isinstance(impl, type) or not issubclass(impl, optim.Optimizer):
        problems.add("impl", "impl", f"{impl!r} is no optimizer class; keywords for it go beside it")
        return
    for refused, why in _REFUSED.items():
        if issubclass(impl, refused):
            problems.add("impl", "impl", f"{impl.__name__} {why}")
    if next((_FAMILY[base] for base in impl.__mro__ if base in _FAMILY), family) != family:
        better, what = ("MuSGD", "does not divide") if family == "adam" else ("MuAdam", "divides")
        problems.add("impl", "impl", f"{impl.__name__} {what} by the gradient's size; use {better}")


def _keywords(impl: type[optim.Optimizer]) -> tuple[dict[str, Any], bool]:
    """Keywords with their defaults, and whether any other is taken: what goes on as ``**kwargs`` has its base's."""
    named: dict[str, Any] = {}
    for base in impl.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = [*inspect.signature(vars(base)["__init__"]).parameters.values()][1:]
        named = {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)} | named
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return named, False
    return named, True


def _check_keywords(
    impl: type[optim.Optimizer],
    named: Mapping[str, Any],
    takes_any: bool,
    groups: Sequence[Mapping[str, Any]],
    kwargs: Mapping[str, Any],
    problems: Reasons,
) -> None:
    listed = ", ".join(name for name in named if name != "scales")
    unknown = [name for name in kwargs if name == "scales" or (name not in named and not takes_any)]
    for index, group in enumerate(groups):
        where = f"groups[{index}]"
        own = [key for key in group if key not in _GROUP_KEYS]
        unknown += [key for key in own if issubclass(impl, ScheduleFree) or (key not in named and not takes_any)]
        unknown += [key for key in ("weight_decay", "eps") if key in group and key not in named]
        if "learning_rate" in group:
            rate = kwargs.get("learning_rate")
            if callable(rate):
                problems.add("learning_rate", where, "has a rate of its own beside a schedule; give numbers for both")
            elif isinstance(rate, int | float | mx.array) and rate == 0:
                problems.add("learning_rate", where, "has a rate of its own beside 0, which has no ratio to it")
    for name in unknown:
        problems.add("keyword", name, f"{impl.__name__} does not take it here; it takes {listed}")


def _check_numbers(kwargs: Mapping[str, Any], problems: Reasons) -> None:
    rate = kwargs.get("learning_rate", 0.0)
    if isinstance(rate, mx.array):
        if rate.size != 1:
            problems.add("out_of_range", "learning_rate", f"has shape {rate.shape}; give a finite number ≥ 0")
        rate = rate.item() if rate.size == 1 else 0.0
    check_numbers("", {**kwargs, "learning_rate": 0.0 if callable(rate) else rate}, problems)
