"""μP's scales for a fine-tune: of adapters by what their factors map, of other trained weights by their kind.

With base weights frozen and B at zero, A maps a width to the finite rank (output-like) and B the rank to a width
(input-like); DoRA's magnitude is a gain (input-like). Under Adam that is the rate /m_in for A and the rate itself for
B: what LoRA+ derives for wide models (Hayou, Ghosh, Yu 2024, arXiv 2402.12354), relative to the model on which the
rate was tuned.

Invariant: scales are for the trainable leaves, exactly those; the model is only looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from ..errors import Reasons, ShapeMismatch
from ..mup import BaseShapes, Scale, Scales, mup_scales
from ..mup.choices import Choices
from ..mup.forward import READOUT, forward_multipliers
from ..mup.kinds import place
from ..mup.readout import Readout
from ..mup.rules import Decay, Family, factors
from ..mup.scaling import match_patterns
from ..mup.shapes import Dim
from ..mup.walk import Leaf, leaves
from .lora_axes import B, M, base_path, carries_multiplier, dims_of, holder, is_adapter, itself, module_of
from .lora_base import Base, config_of, lora_base

_ROW_NORMS = "experimental: an embedding's row norms grow as the root of the width, the rate of their m does not"


@dataclass(frozen=True, slots=True)
class _Given:
    """What every leaf is decided from."""

    forward: Mapping[str, float]
    choices: Choices
    named: Mapping[str, str]
    ratio: float


def lora_scales(
    model: Any,
    base: Base | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    ratio: float | None = None,
    family: Family = "adam",
    weight_decay: Decay = "independent",
    scale_eps: bool = True,
    overrides: Mapping[str, str] | None = None,
) -> Scales:
    """The multipliers of everything that a fine-tune trains, relative to the model on which its rate was tuned.

    A's start needs nothing: mlx-lm draws it with variance 1/(3·in), right at every width since B starts at zero. A
    forward multiplier of the model's own that reaches an adapter counts once: for B, or for DoRA's m.

    Args:
        model: A model of mlx-lm's with LoRA or DoRA layers attached, or with some of its weights unfrozen.
        base: What the rate was tuned on (see :func:`~mufree.lm.lora_base.lora_base`); None: on this model.
        config: The model's config; read from the model if left out.
        ratio: LoRA+'s λ: B's rate over A's *in the base model*, where A's is the learning rate itself. With a base the
            rates are lr/m_in for A and λ·lr for B, so that B's over A's grows with width, as LoRA+ asks; None: 1.
            The decay factor stays, so that rate × decay of B is λ times that of the other weights.
        family: ``adam`` for optimizers that divide by the gradient's size, ``sgd`` for those that do not.
        weight_decay: ``independent`` keeps the base's rate × decay, ``standard`` its decay, ``none`` has none.
        scale_eps: Whether eps follows the size of the gradients.
        overrides: Path pattern to kind or axis letters, for trained weights of layers that are not known.

    Returns:
        One scale for each trainable leaf, for ``AdamWScheduleFree(scales=…)``, ``MuAdamW`` and the like.

    Raises:
        Refused: Nothing is trainable, neither base nor ratio is given, the base does not fit, or a weight's kind
            cannot be decided; every reason.
        ShapeMismatch: The base has other parameters, depth or finite sizes.

    References:
        Hayou, Ghosh, Yu 2024, arXiv 2402.12354 (LoRA+); Yang et al. 2022, arXiv 2203.03466, table 3.
    """
    reasons = Reasons()
    if base is None and ratio is None:
        reasons.add("missing", "base", "neither a base nor a ratio: every multiplier would be 1; give one of them")
    if ratio is not None and not (type(ratio) in (int, float) and 0 < ratio < math.inf):
        reasons.add("out_of_range", "ratio", f"{ratio!r} is not a finite number > 0; LoRA+ uses about 16")
    found = leaves(model)
    trained = [leaf for leaf in found if not leaf.frozen]
    if not trained:
        reasons.add("nothing_trained", "model", "has no trainable parameter; attach LoRA layers, or unfreeze some")
    adapters = any(is_adapter(leaf) for leaf in trained)
    if ratio is not None and trained and not adapters:
        reasons.add("no_adapter", "ratio", f"{ratio!r} is for LoRA's B, and no LoRA layer is trained; leave it out")
    choices = reasons.attempt(
        Choices, family=family, weight_decay=weight_decay, scale_eps=scale_eps, overrides=overrides or {}
    )
    choices = reasons.settled(choices)
    config = config_of(model) if config is None else config
    shapes = itself(found, forward_multipliers(model)) if base is None else lora_base(base, config)
    if adapters:
        return _of_factors(model, shapes, found, choices, float(ratio or 1.0))
    return _of_weights(model, shapes, {leaf.path for leaf in trained}, choices)


def _of_factors(model: Any, shapes: BaseShapes, found: tuple[Leaf, ...], choices: Choices, ratio: float) -> Scales:
    """A fine-tune of adapters, and of what is trained beside them."""
    reasons, mismatches = Reasons(), Reasons()
    trained = [leaf for leaf in found if not leaf.frozen]
    named = match_patterns(choices.overrides, found, "overrides", reasons)
    forward = _forward(model, shapes, trained, reasons)
    reasons.refuse_if_any()
    given = _Given(forward, choices, named, ratio)
    dims = {leaf.path: axes for leaf in trained if (axes := dims_of(leaf, shapes, mismatches)) is not None}
    mismatches.refuse_if_any(ShapeMismatch)
    scales = {leaf.path: scale for leaf in trained if (scale := _scale(leaf, dims, given, reasons)) is not None}
    reasons.refuse_if_any()
    return Scales(scales, choices.family, Readout("frozen head"), dims)


def _of_weights(model: Any, shapes: BaseShapes, trained: set[str], choices: Choices) -> Scales:
    """A fine-tune of the weights themselves: μP's own scales, of the trained ones."""
    scales = mup_scales(
        model,
        shapes,
        family=choices.family,
        weight_decay=choices.weight_decay,
        scale_eps=choices.scale_eps,
        overrides=choices.overrides,
    )
    return replace(
        scales,
        by_path={path: scale for path, scale in scales.items() if path in trained},
        readout=scales.readout if trained.issuperset(scales.readout.heads) else Readout("frozen head"),
        dims={path: axes for path, axes in scales.dims.items() if path in trained},
    )


def _scale(leaf: Leaf, dims: Mapping[str, tuple[Dim, ...]], given: _Given, problems: Reasons) -> Scale | None:
    placement = place(
        leaf.path,
        dims[leaf.path],
        classes=leaf.classes,
        name=leaf.name,
        siblings={name: dims[path] for path, name in _siblings(leaf, dims)},
        override=given.named.get(leaf.path),
        problems=problems,
    )
    if placement is None:
        return None
    multiplier = given.forward.get(leaf.path, 1.0)
    row = factors(
        placement.kind,
        m_in=placement.m_in,
        m_out=placement.m_out,
        multiplier=multiplier,
        family=given.choices.family,
        weight_decay=given.choices.weight_decay,
        scale_eps=given.choices.scale_eps,
    )
    faster = given.ratio if is_adapter(leaf) and leaf.name == B else 1.0
    init = placement.start.shrunk if placement.start.keeps else row.init
    return Scale(
        placement.kind,
        placement.m_in,
        placement.m_out,
        multiplier,
        init,
        row.lr * faster,
        row.eps,
        row.weight_decay,
        _note(leaf, faster),
    )


def _siblings(leaf: Leaf, dims: Mapping[str, tuple[Dim, ...]]) -> list[tuple[str, str]]:
    prefix = f"{module_of(leaf)}."
    return [(path, path.removeprefix(prefix)) for path in dims if path.startswith(prefix)]


def _note(leaf: Leaf, faster: float) -> str:
    if is_adapter(leaf) and leaf.name == M and holder(leaf) == "embedding":
        return _ROW_NORMS
    return f"LoRA+ ratio {faster:g}" if faster != 1 else ""


def _forward(model: Any, shapes: BaseShapes, trained: list[Leaf], problems: Reasons) -> dict[str, float]:
    """By path of a trained leaf: the model's own forward multiplier relative to the base's, where it has one."""
    result: dict[str, float] = {}
    for where, value in forward_multipliers(model).items():
        pattern = "*lm_head.weight" if where == READOUT else where
        hit = [leaf.path for leaf in trained if carries_multiplier(leaf) and fnmatchcase(base_path(leaf), pattern)]
        if where in shapes.forward:
            result.update(dict.fromkeys(hit, value / shapes.forward[where]))
        elif hit:
            problems.add("forward_multipliers", "base", f"does not say its multiplier of {pattern}; give its config")
    return result
