"""What μP multiplies for every parameter of a model, as a value that is handed on; nothing is written on arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..errors import Reasons
from .forward import forward_multipliers
from .kinds import Placement, place
from .readout import Readout, find_readout
from .rules import DECAYS, FAMILIES, Decay, Family, Kind, factors
from .shapes import NOTHING, BaseShapes, Dim
from .walk import Leaf, leaves


@dataclass(frozen=True, slots=True)
class Scale:
    """One parameter's multipliers, all relative to the base model.

    Args:
        kind: input-like, hidden, output-like or scalar-like.
        m_in: Width multiplier of its fan-in, 1 if that does not scale.
        m_out: Width multiplier of its fan-out.
        multiplier: A, the forward multiplier that the model has, relative to the base model's.
        init: Factor on the base model's init std.
        lr: Factor on the learning rate.
        eps: Factor on Adam's eps.
        weight_decay: Factor on the weight decay, where the decay is lr·wd·y.
        note: What a reader of the table should know, e.g. that a norm gain carries the head's 1/m.
    """

    kind: Kind
    m_in: float = 1.0
    m_out: float = 1.0
    multiplier: float = 1.0
    init: float = 1.0
    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Scales(Mapping[str, Scale]):
    """The multipliers of a whole model: parameter path to :class:`Scale`.

    Args:
        by_path: One scale a parameter.
        family: The family of optimizers they are made for, ``adam`` or ``sgd``.
        readout: How the head gets its 1/m.
        dims: The axes of each parameter, for the table.
    """

    by_path: Mapping[str, Scale]
    family: Family = "adam"
    readout: Readout = field(default_factory=lambda: Readout("no readout"))
    dims: Mapping[str, tuple[Dim, ...]] = field(default_factory=dict)

    def __getitem__(self, path: str) -> Scale:
        return self.by_path[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_path)

    def __len__(self) -> int:
        return len(self.by_path)

    def table(self) -> str:
        """What to check before a long run: one line for each parameter, and how the head gets its 1/m."""
        from .table import table

        return table(self)


@dataclass(frozen=True, slots=True)
class Decided:
    """Scales with what :func:`mufree.mup.init.parametrize` needs besides."""

    scales: Scales
    placements: Mapping[str, Placement]
    found: tuple[Leaf, ...]


def mup_scales(
    model: Any,
    base_shapes: BaseShapes,
    *,
    family: Family = "adam",
    weight_decay: Decay = "independent",
    scale_eps: bool = True,
    overrides: Mapping[str, str] = NOTHING,
    multipliers: Mapping[str, float] = NOTHING,
    readout_gain: str | None = None,
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
            applies to this parameter and that is not found by itself.
        readout_gain: Path pattern of the final norm's parameters, where a tied model's norm cannot be found.

    Raises:
        ShapeMismatch: The model and the base shapes have other paths or finite sizes.
        Refused: A parameter's kind cannot be decided, or a pattern matches nothing.
    """
    return decide(
        model,
        base_shapes,
        family=family,
        weight_decay=weight_decay,
        scale_eps=scale_eps,
        overrides=overrides,
        multipliers=multipliers,
        readout_gain=readout_gain,
    ).scales


def decide(
    model: Any,
    base_shapes: BaseShapes,
    *,
    family: Family = "adam",
    weight_decay: Decay = "independent",
    scale_eps: bool = True,
    overrides: Mapping[str, str] = NOTHING,
    multipliers: Mapping[str, float] = NOTHING,
    readout_gain: str | None = None,
) -> Decided:
    """:func:`mup_scales`, with the placements that it is based on."""
    _check_arguments(base_shapes, family, weight_decay)
    found = leaves(model)
    dims = base_shapes.dims(model)
    problems = Reasons()
    _same_array_twice(found, problems)
    named = match_patterns(overrides, found, "overrides", problems)
    given = match_patterns(multipliers, found, "multipliers", problems)
    placements = _place_all(found, dims, named, problems)
    forward = _forward(model, base_shapes, found, given, problems)
    readout = find_readout(model, found, placements, forward, readout_gain, problems)
    problems.refuse_if_any()
    scales: dict[str, Scale] = {}
    for path, placement in placements.items():
        carried = 1.0 / readout.share if path in readout.gains else 1.0
        multiplier = forward.get(path, 1.0)
        if path in readout.heads and readout.way == "untied head":
            multiplier *= forward.get("readout", 1.0)
        row = factors(
            placement.kind,
            m_in=placement.m_in,
            m_out=placement.m_out,
            multiplier=multiplier * carried,
            family=family,
            weight_decay=weight_decay,
            scale_eps=scale_eps,
        )
        scales[path] = Scale(
            placement.kind,
            placement.m_in,
            placement.m_out,
            multiplier,
            placement.start.shrunk if placement.start.keeps else row.init,
            row.lr,
            row.eps,
            row.weight_decay,
            readout.notes.get(path, ""),
        )
    return Decided(Scales(scales, family, readout, dims), placements, found)


def _check_arguments(base_shapes: object, family: str, weight_decay: str) -> None:
    problems = Reasons()
    if not isinstance(base_shapes, BaseShapes):
        problems.add(
            "base_shapes", "base_shapes", f"{base_shapes!r} are no base shapes: without them nothing can be scaled; "
            "make them with make_base_shapes(base, delta) or BaseShapes.load(path)",
        )  # fmt: skip
    if family not in FAMILIES:
        problems.add("family", "family", f"{family!r} is none of {', '.join(FAMILIES)}")
    if weight_decay not in DECAYS:
        problems.add("weight_decay", "weight_decay", f"{weight_decay!r} is none of {', '.join(DECAYS)}")
    problems.refuse_if_any()


def _same_array_twice(found: tuple[Leaf, ...], problems: Reasons) -> None:
    first: dict[int, str] = {}
    for leaf in found:
        if leaf.owner is None or len(leaf.shape) < 2:
            continue
        other = first.setdefault(id(leaf.value), leaf.path)
        if other != leaf.path:
            problems.add(
                "not_tied",
                leaf.path,
                f"holds the very array of {other}, which in MLX ties nothing: they are two parameters and part at the "
                "first update; call the embedding's as_linear in the forward pass, or use MuSharedReadout",
            )


def match_patterns(
    patterns: Mapping[str, Any], found: tuple[Leaf, ...], where: str, problems: Reasons
) -> dict[str, Any]:
    """Each pattern's value by path; a later pattern wins, one that matches nothing is a problem."""
    result: dict[str, Any] = {}
    for pattern, value in patterns.items():
        hits = [leaf.path for leaf in found if fnmatchcase(leaf.path, pattern)]
        if not hits:
            problems.add("no_match", where, f"{pattern!r} matches no parameter; paths look like {found[0].path!r}")
        result.update(dict.fromkeys(hits, value))
    return result


def _place_all(
    found: tuple[Leaf, ...],
    dims: Mapping[str, tuple[Dim, ...]],
    named: Mapping[str, str],
    problems: Reasons,
) -> dict[str, Placement]:
    siblings: dict[int, dict[str, tuple[Dim, ...]]] = {}
    for leaf in found:
        siblings.setdefault(id(leaf.owner), {})[leaf.name] = dims[leaf.path]
    placements = {}
    for leaf in found:
        mine = Reasons()
        placement = place(
            leaf.path,
            dims[leaf.path],
            classes=leaf.classes,
            name=leaf.name,
            siblings=siblings[id(leaf.owner)],
            override=named.get(leaf.path),
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
    result: dict[str, float] = {}
    if "readout" in own:
        result["readout"] = own["readout"] / base_shapes.forward.get("readout", own["readout"])
    if "embedding" in own:
        ratio = own["embedding"] / base_shapes.forward.get("embedding", own["embedding"])
        tokens = [leaf.path for leaf in found if fnmatchcase(leaf.path, "*embed_tokens.weight")]
        result.update(dict.fromkeys(tokens, ratio))
    return {**result, **given}
