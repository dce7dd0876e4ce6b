"""What the Mu optimizers may be asked for; every refusal before anything is built."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim

from mufree.errors import Reasons
from mufree.mup.rules import Family
from mufree.schedule_free.base import ScheduleFree

_REFUSED = {
    optim.Muon: "scales its updates by each tensor's shape itself; μP on top would scale twice. Use MuAdam or MuSGD",
    optim.Adafactor: "takes its step relative to each tensor's size, which μP's rates do not cover. Use MuAdam",
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
    for refused, why in _REFUSED.items():
        if issubclass(impl, refused):
            problems.add("impl", "impl", f"{impl.__name__} {why}")
    if _FAMILY.get(impl, family) != family:
        better, what = ("MuSGD", "does not divide") if family == "adam" else ("MuAdam", "divides")
        problems.add("impl", "impl", f"{impl.__name__} {what} by the gradient's size; use {better}")
    made_for = getattr(scales, "family", None)
    if made_for != family:
        problems.add("family", "scales", f"made for {made_for!r}; make them with mup_scales(…, family={family!r})")
    parameters = inspect.signature(impl).parameters.values()
    named = {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    taken = {name: kwargs.get(name, default) for name, default in named.items()}
    taken = {name: value for name, value in taken.items() if value is not inspect.Parameter.empty}
    if "learning_rate" not in {**taken, **kwargs}:
        problems.add("learning_rate", "learning_rate", "is missing; give the base model's")
    _check_numbers("", kwargs, problems)
    _check_keywords(impl, named, takes_any, groups, kwargs, problems)
    problems.refuse_if_any()
    return taken


def _check_keywords(
    impl: type[optim.Optimizer],
    named: Mapping[str, Any],
    takes_any: bool,
    groups: Sequence[Mapping[str, Any]] | None,
    kwargs: Mapping[str, Any],
    problems: Reasons,
) -> None:
    listed = ", ".join(name for name in named if name != "scales")
    unknown = [name for name in kwargs if name == "scales" or (name not in named and not takes_any)]
    for index, group in enumerate(groups or ()):
        where = f"groups[{index}]"
        _check_numbers(f"{where}.", group, problems)
        own = [key for key in group if key not in _GROUP_KEYS]
        unknown += [key for key in own if issubclass(impl, ScheduleFree) or (key not in named and not takes_any)]
        unknown += [key for key in ("weight_decay", "eps") if key in group and key not in named]
        if "learning_rate" in group and callable(kwargs.get("learning_rate")):
            problems.add("learning_rate", where, "has a rate of its own beside a schedule; give numbers for both")
    for name in unknown:
        problems.add("keyword", name, f"{impl.__name__} does not take it here; it takes {listed}")


def _check_numbers(prefix: str, settings: Mapping[str, Any], problems: Reasons) -> None:
    for name in ("learning_rate", "weight_decay", "eps"):
        value = settings.get(name, 0.0)
        if name == "learning_rate" and (callable(value) or isinstance(value, mx.array)):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            problems.add("out_of_range", f"{prefix}{name}", f"{value!r}; give a finite number ≥ 0")
