"""Optimizers with μP's rates: any stock MLX optimizer, or a schedule-free one, split by width multiplier.

Invariant: the ratios between the groups' rates are those of the scales at every update, whether the rate comes from a
schedule, was set by hand or was loaded.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim

from mufree.errors import Reasons
from mufree.mup import ParamGroup, Scales, param_groups
from mufree.mup.rules import Family
from mufree.schedule_free import AdamWScheduleFree
from mufree.schedule_free.base import ScheduleFree
from mufree.schedule_free.rule import Multipliers

from .grouped import Grouped, Member
from .standard import FactorMap

Rate = float | Callable[[mx.array], mx.array]
Groups = Sequence[Mapping[str, Any]] | None
_SGD_LIKE = (optim.SGD,)
_REFUSED = {
    optim.Muon: "scales its updates by each tensor's shape itself; μP on top would scale twice. Use MuAdam or MuSGD",
    optim.Adafactor: "takes its step relative to each tensor's size, which μP's rates do not cover. Use MuAdam",
}


def MuAdam(  # noqa: N802 - an optimizer's name, as microsoft/mup's
    params: Any,
    scales: Scales,
    *,
    impl: type[optim.Optimizer] = optim.Adam,
    groups: Groups = None,
    decoupled_wd: bool = False,
    **kwargs: Any,
) -> optim.Optimizer:
    """An Adam-like MLX optimizer with μP's rate, eps and decay for every parameter.

    Args:
        params: The parameters to optimize: ``model.trainable_parameters()``, a model or a tree.
        scales: Their scales, made for the ``adam`` family.
        impl: The optimizer, of those that divide by the gradient's size: Adam, AdamW, Adamax, RMSprop, Adagrad, Lion,
            a class of your own, or a schedule-free one.
        groups: Groups of your own, as :func:`~mufree.param_groups` takes them; other keys reach ``impl``.
        decoupled_wd: Leave the decay unscaled, for an ``impl`` whose decay is not multiplied by the rate. Warns where
            it is: rate × decay then falls with width.
        **kwargs: For ``impl``: the base model's ``learning_rate`` (a number or a schedule), decay, eps, …

    Returns:
        One optimizer. Its ``learning_rate`` is the base model's; setting it keeps the ratios.

    Raises:
        ShapeMismatch: A parameter has no scale.
        Refused: ``impl`` is not Adam-like, does not take a keyword, or the scales are of another family.
    """
    return _optimizer(params, scales, "adam", impl, groups, decoupled_wd, kwargs)


def MuAdamW(  # noqa: N802
    params: Any,
    scales: Scales,
    *,
    impl: type[optim.Optimizer] = optim.AdamW,
    groups: Groups = None,
    decoupled_wd: bool = False,
    **kwargs: Any,
) -> optim.Optimizer:
    """:func:`MuAdam` on MLX's AdamW, whose decay (0.01 if none is given) is multiplied by the rate."""
    return _optimizer(params, scales, "adam", impl, groups, decoupled_wd, kwargs)


def MuSGD(  # noqa: N802
    params: Any,
    scales: Scales,
    *,
    impl: type[optim.Optimizer] = optim.SGD,
    groups: Groups = None,
    decoupled_wd: bool = False,
    **kwargs: Any,
) -> optim.Optimizer:
    """:func:`MuAdam`'s counterpart for optimizers that do not divide by the gradient's size.

    Args:
        params: As for :func:`MuAdam`.
        scales: Their scales, made for the ``sgd`` family.
        impl: SGD, a class of your own, or SGDScheduleFree.
        groups: As for :func:`MuAdam`.
        decoupled_wd: As for :func:`MuAdam`.
        **kwargs: For ``impl``.

    Raises:
        Refused: As for :func:`MuAdam`.
    """
    return _optimizer(params, scales, "sgd", impl, groups, decoupled_wd, kwargs)


def MuAdamWScheduleFree(  # noqa: N802
    params: Any,
    scales: Scales,
    *,
    impl: type[ScheduleFree] = AdamWScheduleFree,
    groups: Groups = None,
    decoupled_wd: bool = False,
    **kwargs: Any,
) -> ScheduleFree:
    """A schedule-free optimizer with μP's rate, eps and decay for every parameter; one averaging weight for all.

    Args:
        params: As for :func:`MuAdam`.
        scales: Their scales.
        impl: The schedule-free optimizer.
        groups: As for :func:`MuAdam`, with no other keys than the rate, eps and the decay.
        decoupled_wd: As for :func:`MuAdam`. A schedule-free decay is multiplied by the rate, so this warns.
        **kwargs: For ``impl``.

    Raises:
        Refused: As for :func:`MuAdam`.
    """
    result: ScheduleFree = _optimizer(params, scales, scales.family, impl, groups, decoupled_wd, kwargs)
    return result


def _optimizer(
    params: Any,
    scales: Scales,
    family: Family,
    impl: type[optim.Optimizer],
    groups: Groups,
    decoupled_wd: bool,
    kwargs: dict[str, Any],
) -> Any:
    defaults = _defaults(impl)
    free = issubclass(impl, ScheduleFree)
    _check(scales, family, impl, groups, kwargs, defaults)
    if decoupled_wd and (free or impl.__module__.startswith("mlx.")):
        warnings.warn(
            f"decoupled_wd=True leaves the decay unscaled, but {impl.__name__}'s decay is multiplied by the learning "
            "rate: their product then falls with width. Leave it off to keep it constant",
            UserWarning,
            stacklevel=3,
        )
    given = {**defaults, **kwargs}
    rate: Rate = given["learning_rate"]
    base = {
        "learning_rate": 1.0 if callable(rate) else rate,
        "weight_decay": given.get("weight_decay") or 0.0,
        "eps": given.get("eps") or 0.0,
    }
    split = param_groups(params, scales, groups=groups, decoupled_wd=decoupled_wd, **base)
    # A base rate of 0 has no ratios; those of a base rate of 1 are the factors themselves.
    whole = base["learning_rate"] or 1.0
    ratios = [group.learning_rate / whole if base["learning_rate"] else group.lr_factor for group in split]
    if free:
        return _schedule_free(impl, split, ratios, family, base, kwargs)
    members = [
        Member(
            optimizer=impl(**_settings(group, defaults, kwargs)),
            paths=frozenset(group.paths),
            rate_factor=ratio,
        )
        for group, ratio in zip(split, ratios, strict=True)
    ]
    return Grouped(members, rate)


def _settings(group: ParamGroup, defaults: Mapping[str, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = {"learning_rate": 0.0}
    if "weight_decay" in defaults:
        own["weight_decay"] = group.weight_decay
    if "eps" in defaults:
        own["eps"] = group.eps
    return {**kwargs, **group.options, **own}


def _schedule_free(
    impl: type[optim.Optimizer],
    split: Sequence[ParamGroup],
    ratios: Sequence[float],
    family: Family,
    base: Mapping[str, float],
    kwargs: Mapping[str, Any],
) -> optim.Optimizer:
    decay = base["weight_decay"] or max(group.weight_decay for group in split)
    eps = base["eps"] or max(group.eps for group in split)
    factors = {
        path: Multipliers(ratio, group.eps / eps if eps else 1.0, group.weight_decay / decay if decay else 1.0)
        for group, ratio in zip(split, ratios, strict=True)
        for path in group.paths
    }
    settings = dict(kwargs)
    if decay:
        settings["weight_decay"] = decay
    if eps:
        settings["eps"] = eps
    return impl(**settings, scales=FactorMap(factors, family))


def _defaults(impl: type[optim.Optimizer]) -> dict[str, Any]:
    """What ``impl`` takes, with the default of each."""
    found = inspect.signature(impl).parameters.values()
    return {p.name: p.default for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _check(
    scales: Scales,
    family: Family,
    impl: type[optim.Optimizer],
    groups: Groups,
    kwargs: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> None:
    problems = Reasons()
    for refused, why in _REFUSED.items():
        if issubclass(impl, refused):
            problems.add("impl", "impl", f"{impl.__name__} {why}")
    if issubclass(impl, _SGD_LIKE) and family == "adam":
        problems.add("impl", "impl", f"{impl.__name__} does not divide by the gradient's size; use MuSGD")
    if impl in (optim.Adam, optim.AdamW, optim.Adamax, optim.Lion, optim.RMSprop, optim.Adagrad) and family == "sgd":
        problems.add("impl", "impl", f"{impl.__name__} divides by the gradient's size; use MuAdam")
    made_for = getattr(scales, "family", None)
    if made_for != family:
        problems.add("family", "scales", f"made for {made_for!r}; make them with mup_scales(…, family={family!r})")
    if defaults.get("learning_rate") is inspect.Parameter.empty and "learning_rate" not in kwargs:
        problems.add("learning_rate", "learning_rate", "is missing; give the base model's")
    unknown = [name for name in kwargs if name not in defaults or name == "scales"]
    own = {"match", "learning_rate", "weight_decay", "eps"}
    for index, group in enumerate(groups or ()):
        free = issubclass(impl, ScheduleFree)
        unknown += [key for key in group if key not in own and (free or key not in defaults)]
        unknown += [key for key in ("weight_decay", "eps") if key in group and key not in defaults]
        if "learning_rate" in group and callable(kwargs.get("learning_rate")):
            problems.add(
                "learning_rate", f"groups[{index}]", "has a rate of its own beside a schedule; give numbers for both"
            )
    for name in unknown:
        taken = ", ".join(key for key in defaults if key != "scales")
        problems.add("keyword", name, f"{impl.__name__} does not take it for a group; it takes {taken}")
    problems.refuse_if_any()
