"""Optimizers with μP's rates: any stock MLX optimizer, or a schedule-free one, split by width multiplier.

Invariant: the ratios between the groups' rates are those of the scales at every update, whether the rate comes from a
schedule, was set by hand or was loaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim

from mufree.errors import refuse
from mufree.mup import ParamGroup, Scales, param_groups
from mufree.mup.rules import Family
from mufree.schedule_free import AdamWScheduleFree
from mufree.schedule_free.base import ScheduleFree
from mufree.schedule_free.rule import Multipliers

from .grouped import Grouped, Member
from .mu_arguments import check_arguments
from .standard import FactorMap

Rate = float | Callable[[mx.array], mx.array]
Groups = Sequence[Mapping[str, Any]] | None


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

    MLX's Adam and AdamW do not correct the bias of their averages unless told to, and their first updates are larger
    for it: the first one 3.16 times the rate at ``betas=(0.9, 0.999)``. PyTorch's, and so microsoft/mup's MuAdam, do
    correct it: ``bias_correction=True`` gives the same here.

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
        ShapeMismatch: A parameter has no scale, or the scales are those of a model of other widths.
        Refused: ``impl`` is not Adam-like, does not take a keyword, or the scales are of another family.

    Example:
        >>> import mlx.core as mx
        >>> from mufree import MuAdam, make_base_shapes, mup_scales
        >>> wide = {"body": mx.zeros((512, 512)), "gain": mx.ones((512,))}
        >>> base, delta = ({"body": (n, n), "gain": (n,)} for n in (64, 128))
        >>> scales = mup_scales(wide, make_base_shapes(base, delta))
        >>> optimizer = MuAdam(wide, scales, learning_rate=0.25)
        >>> optimizer.member_rate("body").item(), optimizer.member_rate("gain").item()
        (0.03125, 0.25)

    References:
        Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, tables 3 and 8 and appendix B.3.
        microsoft/mup 1.0.0, ``mup.optim.MuAdam``.
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
    """:func:`MuAdam` on MLX's AdamW, whose decay (0.01 if none is given) is multiplied by the rate.

    Give ``bias_correction=True`` for PyTorch's AdamW: MLX's does not correct the bias by itself, so that its first
    update is 3.16 times the rate at ``betas=(0.9, 0.999)``.

    Args:
        params: As for :func:`MuAdam`.
        scales: As for :func:`MuAdam`.
        impl: As for :func:`MuAdam`.
        groups: As for :func:`MuAdam`.
        decoupled_wd: As for :func:`MuAdam`. AdamW's decay is multiplied by the rate, so this warns.
        **kwargs: As for :func:`MuAdam`.

    Returns:
        As for :func:`MuAdam`.

    Raises:
        ShapeMismatch: As for :func:`MuAdam`.
        Refused: As for :func:`MuAdam`.

    Example:
        >>> import mlx.core as mx
        >>> from mufree import MuAdamW, make_base_shapes, mup_scales
        >>> wide = {"body": mx.zeros((512, 512))}
        >>> scales = mup_scales(wide, make_base_shapes({"body": (64, 64)}, {"body": (128, 128)}))
        >>> optimizer = MuAdamW(wide, scales, learning_rate=0.25, weight_decay=0.1)
        >>> [(member.rate_factor, member.optimizer.weight_decay) for member in optimizer.members]
        [(0.125, 0.8)]
    """
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

    Returns:
        As for :func:`MuAdam`.

    Raises:
        ShapeMismatch: As for :func:`MuAdam`.
        Refused: As for :func:`MuAdam`.

    Example:
        >>> import mlx.core as mx
        >>> from mufree import MuSGD, make_base_shapes, mup_scales
        >>> wide = {"body": mx.zeros((512, 512)), "gain": mx.ones((512,))}
        >>> base, delta = ({"body": (n, n), "gain": (n,)} for n in (64, 128))
        >>> scales = mup_scales(wide, make_base_shapes(base, delta), family="sgd")
        >>> optimizer = MuSGD(wide, scales, learning_rate=0.5, momentum=0.9)
        >>> optimizer.member_rate("body").item(), optimizer.member_rate("gain").item()
        (0.5, 4.0)

    References:
        Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, tables 3 and 8.
        microsoft/mup 1.0.0, ``mup.optim.MuSGD``.
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
        scales: Their scales, made for the ``sgd`` family if ``impl`` is SGDScheduleFree, else for ``adam``.
        impl: The schedule-free optimizer.
        groups: As for :func:`MuAdam`, with no other keys than the rate, eps and the decay.
        decoupled_wd: As for :func:`MuAdam`. A schedule-free decay is multiplied by the rate, so this warns.
        **kwargs: For ``impl``.

    Returns:
        The schedule-free optimizer, which takes each parameter's multipliers by path.

    Raises:
        ShapeMismatch: As for :func:`MuAdam`.
        Refused: As for :func:`MuAdam`.

    Example:
        >>> import mlx.core as mx
        >>> from mufree import MuAdamWScheduleFree, make_base_shapes, mup_scales
        >>> wide = {"body": mx.ones((512, 512)), "gain": mx.ones((512,))}
        >>> base, delta = ({"body": (n, n), "gain": (n,)} for n in (64, 128))
        >>> scales = mup_scales(wide, make_base_shapes(base, delta))
        >>> optimizer = MuAdamWScheduleFree(wide, scales, learning_rate=0.25)
        >>> moved = optimizer.apply_gradients(wide, wide)  # a first update moves by the rate
        >>> 1 - moved["body"][0, 0].item(), 1 - moved["gain"][0].item()
        (0.03125, 0.25)

    References:
        Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, tables 3 and 8 and appendix B.3.
        Defazio et al. 2024, "The Road Less Scheduled", arXiv 2405.15682, Algorithm 1.
    """
    if isinstance(impl, type) and not issubclass(impl, ScheduleFree):
        refuse("impl", "impl", f"{impl.__name__} is not schedule-free; use MuAdam or MuSGD")
    result: ScheduleFree = _optimizer(
        params, scales, getattr(scales, "family", "adam"), impl, groups, decoupled_wd, kwargs
    )
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
    defaults = check_arguments(scales, family, impl, groups, kwargs)
    free = issubclass(impl, ScheduleFree)
    if decoupled_wd and (free or impl.__module__.startswith("mlx.")):
        warnings.warn(
            f"decoupled_wd=True leaves the decay unscaled, but {impl.__name__}'s decay is multiplied by the learning "
            "rate: their product then falls with width. Leave it off to keep it constant",
            UserWarning,
            stacklevel=3,
        )
    given = {**defaults, **kwargs}
    rate: Rate = given["learning_rate"]
    rate = rate.item() if isinstance(rate, mx.array) else rate
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
        return _schedule_free(impl, split, ratios, scales, base, kwargs)
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
    scales: Scales,
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
    return impl(**settings, scales=FactorMap(factors, scales.family, scales.dims))
