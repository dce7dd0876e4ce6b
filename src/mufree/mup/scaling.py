"""From a model and base shapes to scales: every decision in one pass, every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from ..errors import Reasons, refuse
from .attention import Carrier, query_carriers
from .choices import Choices
from .forward import READOUT, forward_multipliers
from .kinds import Placement, place
from .layouts import experimental
from .look import Look, Readout
from .readout import find_readout, own_readouts
from .rules import Decay, Family, factors
from .scales import Scale, Scales
from .shapes import NOTHING, BaseShapes, Dim
from .walk import Leaf, leaves, named


@dataclass(frozen=True, slots=True)
class Decided:
    """Scales with what :func:`mufree.mup.init.parametrize` needs besides; ``gains`` start so many times as large."""

    scales: Scales
    placements: Mapping[str, Placement]
    found: tuple[Leaf, ...]
    gains: Mapping[str, float]


def mup_scales(
    model: Any,
    base_shapes: BaseShapes,
    *,
    family: Family = "adam",
    weight_decay: Decay = "independent",
    scale_eps: bool = True,
    overrides: Mapping[str, str] = NOTHING,
    multipliers: Mapping[str, float] = NOTHING,
    readout_gain: str | Literal[False] | None = None,
    base_head_dim: int | None = None,
) -> Scales:
    """Work out every parameter's multipliers. The model is only looked at; nothing is evaluated.

    Args:
        model: The target model, or a bare tree of arrays or shapes (kinds then follow the axes alone).
        base_shapes: From :func:`make_base_shapes` or a ``.bsh`` file.
        family: ``adam`` for optimizers that divide by the gradient's size, ``sgd`` for those that do not.
        weight_decay: ``independent`` keeps rate × decay as in the base model, ``standard`` keeps the decay, ``none``
            has no decay.
        scale_eps: Whether eps follows the size of the gradients; microsoft/mup's does not.
        overrides: Path pattern to kind (``"hidden"``, …) or to axis letters (``"oi"``: fan-out, fan-in).
        multipliers: Path pattern to a forward multiplier, relative to the base model, that the model's own code
            applies to this parameter and that is not found by itself; ``"readout"`` for one on the logits:
            ``{"readout": base width / width}`` where the code divides them by the width.
        readout_gain: Path pattern of the parameters of the norm before the head, where a tied model's norm or its
            head itself cannot be found (a head in the loss, say): it declares that an embedding is the head too.
            ``False``: none is, and a model without a readout gives hidden states.
        base_head_dim: The base model's head size, where the head size is a width and the model's own code divides by
            its root: the query projection, or the gain of the norm after it, then carries the rest of 1/d.

    Returns:
        A :class:`~mufree.Scale` for every parameter, for ``AdamWScheduleFree(scales=…)``, ``MuAdamW`` and the like.

    Raises:
        ShapeMismatch: The model and the base shapes have other paths or finite sizes.
        Refused: A parameter's kind cannot be decided, a pattern matches nothing, or a model with an embedding has
            no readout that can be found.

    Example:
        >>> from mufree import make_base_shapes, mup_scales
        >>> base, delta, target = ({"body": (n, n), "gain": (n,)} for n in (64, 128, 512))
        >>> scales = mup_scales(target, make_base_shapes(base, delta))
        >>> for path, scale in scales.items():
        ...     path, scale.kind, scale.lr, scale.weight_decay
        ('body', 'hidden', 0.125, 8.0)
        ('gain', 'input-like', 1.0, 1.0)

    References:
        Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, tables 3 and 8 and appendix B.3.
        Wang and Aitchison 2024, arXiv 2405.13698, for the decay that keeps rate × decay.
    """
    choices = Choices(
        family=family,
        weight_decay=weight_decay,
        scale_eps=scale_eps,
        overrides=overrides,
        multipliers=multipliers,
        readout_gain=readout_gain,
        base_head_dim=base_head_dim,
    )
    return decide(model, base_shapes, choices).scales


def decide(model: Any, base_shapes: BaseShapes, choices: Choices) -> Decided:
    """:func:`mup_scales`, with the placements that it is based on."""
    _check_base_shapes(base_shapes)
    found = leaves(model)
    dims = base_shapes.dims(model)
    problems = Reasons()
    _same_array_twice(found, problems)
    kinds = match_patterns(choices.overrides, found, "overrides", problems)
    own = {READOUT: choices.multipliers[READOUT]} if READOUT in choices.multipliers else {}
    by_path = {pattern: value for pattern, value in choices.multipliers.items() if pattern != READOUT}
    given = own | match_patterns(by_path, found, "multipliers", problems)
    placements = _place_all(found, dims, kinds, problems)
    forward = _forward(model, base_shapes, found, given, problems)
    readout = find_readout(Look(model, found, dims, placements, forward, given), choices.readout_gain, problems)
    head = choices.base_head_dim
    queries = () if head is None else query_carriers(model, found, head, problems)
    for carrier in queries:
        if carrier.gain and carrier.share != 1 and placements[carrier.path].kind == "scalar-like":
            problems.add(
                "base_head_dim",
                carrier.path,
                f"has {dims[carrier.path][0].size} entries in the base model too: the head size does not scale, so "
                "leave base_head_dim off",
            )
    problems.refuse_if_any()
    if readout.way == "untied head":
        forward |= {path: forward.get(path, 1.0) * forward.get(READOUT, 1.0) for path in readout.heads}
    shares = dict.fromkeys(readout.gains, readout.share) | {c.path: c.share for c in queries}
    carriers = {*readout.gains, *(c.path for c in queries if c.gain), *_multiplied_gains(found, forward)}
    gains = {path: shares.get(path, 1.0) / forward.get(path, 1.0) for path in carriers}
    notes = _notes(readout, queries)
    shifted = _shifted(found, gains)
    scales = {
        path: _scale(
            placement,
            forward.get(path, 1.0),
            shares.get(path, 1.0),
            choices,
            decays=path not in shifted,
            note=notes.get(path) or experimental(path),
        )
        for path, placement in placements.items()
    }
    return Decided(Scales(scales, choices.family, readout, dims), placements, found, gains)


def _scale(
    placement: Placement, multiplier: float, share: float, choices: Choices, *, decays: bool, note: str
) -> Scale:
    row = factors(
        placement.kind,
        m_in=placement.m_in,
        m_out=placement.m_out,
        # To carry a share of what the code lacks is to lack a multiplier of one over it.
        multiplier=multiplier / share,
        family=choices.family,
        weight_decay=choices.weight_decay,
        scale_eps=choices.scale_eps,
    )
    return Scale(
        placement.kind,
        placement.m_in,
        placement.m_out,
        multiplier,
        placement.start.shrunk if placement.start.keeps else row.init,
        row.lr,
        row.eps,
        row.weight_decay if decays else 0.0,
        note,
    )


def _notes(readout: Readout, queries: tuple[Carrier, ...]) -> dict[str, str]:
    return {c.path: f"carries the attention's {c.share:.4g}" for c in queries} | dict(readout.notes)


def _multiplied_gains(found: tuple[Leaf, ...], forward: Mapping[str, float]) -> set[str]:
    """Norm gains with a forward multiplier: one of the form 1 + w starts over it as a whole."""
    vectors = (leaf for leaf in found if len(leaf.shape) == 1 and leaf.name != "bias" and leaf.path in forward)
    return {leaf.path for leaf in vectors if "norm" in type(leaf.owner).__name__.lower()}


def _shifted(found: tuple[Leaf, ...], gains: Mapping[str, float]) -> set[str]:
    """Gains of the form 1 + w that carry something: decay pulls w to 0, which is no longer where it started."""
    carriers = [leaf for leaf in found if gains.get(leaf.path, 1.0) != 1.0]
    if not carriers:
        return set()
    from .gains import gain_offset

    return {leaf.path for leaf in carriers if gain_offset(leaf)}


def _check_base_shapes(base_shapes: object) -> None:
    if not isinstance(base_shapes, BaseShapes):
        refuse(
            "base_shapes", "base_shapes", f"{named(base_shapes)} is no base shapes, without which nothing scales; "
            "make them with make_base_shapes(base, delta) or BaseShapes.load(path)",
        )  # fmt: skip


def _same_array_twice(found: tuple[Leaf, ...], problems: Reasons) -> None:
    first: dict[int, Leaf] = {}
    for leaf in found:
        if leaf.owner is None or len(leaf.shape) < 2:
            continue
        other = first.setdefault(id(leaf.value), leaf)
        # One module under two names is one parameter: what the last name is given, the other has.
        if other.owner is not leaf.owner:
            problems.add(
                "not_tied",
                leaf.path,
                f"holds the very array of {other.path}, which in MLX ties nothing: they are two parameters and part at "
                "the first update; call the embedding's as_linear in the forward pass, or use MuSharedReadout",
            )


def match_patterns(
    patterns: Mapping[str, Any], found: tuple[Leaf, ...], where: str, problems: Reasons
) -> dict[str, Any]:
    """Each pattern's value by path; a later pattern wins, one that matches nothing is a problem."""
    result: dict[str, Any] = {}
    for pattern, value in patterns.items():
        hits = [leaf.path for leaf in found if fnmatchcase(leaf.path, pattern)]
        if not hits:
            like = f"paths look like {found[0].path!r}" if found else "there is none"
            problems.add("no_match", where, f"{pattern!r} matches no parameter; {like}")
        result.update(dict.fromkeys(hits, value))
    return result


def _place_all(
    found: tuple[Leaf, ...],
    dims: Mapping[str, tuple[Dim, ...]],
    kinds: Mapping[str, str],
    problems: Reasons,
) -> dict[str, Placement]:
    siblings: dict[int, dict[str, tuple[Dim, ...]]] = {}
    for leaf in found:
        siblings.setdefault(id(leaf.owner), {})[leaf.name] = dims[leaf.path]
    placements = {}
    for leaf in found:
        mine = Reasons()
        if "int" in str(getattr(leaf.value, "dtype", "")):
            if not leaf.frozen:
                packed = "uint" in str(leaf.value.dtype) and any("scale" in name for name in siblings[id(leaf.owner)])
                problems.add(
                    "packed" if packed else "whole_numbers",
                    leaf.path,
                    f"holds {leaf.value.dtype}, {'packed weights' if packed else 'whole numbers'} that no gradient can "
                    "train; freeze its module, or give an array that is no parameter a name with a leading underscore",
                )
            continue
        placement = place(
            leaf.path,
            dims[leaf.path],
            classes=leaf.classes,
            name=leaf.name,
            siblings=siblings[id(leaf.owner)],
            override=kinds.get(leaf.path),
            problems=mine,
        )
        if placement is not None:
            placements[leaf.path] = placement
        elif not leaf.frozen:
            problems.found.extend(mine.found)
    return placements


def _forward(
    model: Any,
    base_shapes: BaseShapes,
    found: tuple[Leaf, ...],
    given: Mapping[str, float],
    problems: Reasons,
) -> dict[str, float]:
    """Forward multipliers relative to the base model: by path, and ``readout``."""
    own = forward_multipliers(model)
    if own and not base_shapes.forward and not given:
        problems.add(
            "forward_multipliers",
            "base_shapes",
            f"the model has forward multipliers of its own ({', '.join(own)}) and these base shapes do not say what "
            "the base model's are; make them from models, or give multipliers={path: target's over base's}",
        )
    result = own_readouts(model, base_shapes, found, problems)
    for where, value in own.items():
        ratio = value / base_shapes.forward.get(where, value)
        paths = [where] if where == READOUT else [leaf.path for leaf in found if fnmatchcase(leaf.path, where)]
        result.update(dict.fromkeys(paths, ratio))
    return {**result, **given}
