"""How a model's head gets its 1/m: found from the model, without a custom layer.

Three ways, all equal by Lemma J.1: an untied head by init and rates alone (Table 3 of Tensor Programs V); a tied head
through the gain of the norm before it; a multiplier in the model's own configuration. A tied tensor stays input-like:
the 1/m belongs to its use as a head, logits = (h · Wᵀ)·A_embedding/m.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from ..errors import Reasons
from .forward import READOUT
from .functions import KNOWN_PACKAGES, root
from .kinds import Placement
from .look import Look
from .look import Readout as Readout
from .shapes import BaseShapes
from .tied import through_gain
from .tying import tables, tied_by_code
from .walk import Leaf, modules, skeleton

# Output-like by their axes, yet no readout: routers, fixed key/value heads, low-rank down-projections, adapters.
_NOT_HEADS = (
    "*gate*", "*router*", "k_proj", "v_proj", "key_proj", "value_proj", "wk", "wv", "q_a_proj", "kv_a_proj*",
    "lora_*", "*x_proj*",
)  # fmt: skip
_HEADS = ("lm_head", "head", "embed_out", "output", "readout", "classifier", "score")


def find_readout(look: Look, readout_gain: str | Literal[False] | None, problems: Reasons) -> Readout:
    """Find the head, and for a tied one the norm gain that has to carry its 1/m.

    Args:
        look: The model and what is known of it.
        readout_gain: Pattern of the final norm's parameters, where they cannot be found; ``False`` if nothing is tied.
        problems: Collects what stands in the way.
    """
    heads = _untied(look.found, look.placements)
    candidates = tables(look.found, look.dims, look.placements)
    tied, doubtful = (None, False) if readout_gain is False else _tied(look, candidates, heads)
    if tied is not None and doubtful and heads and readout_gain is None:
        _two_heads(look, tied, heads, problems)
    if tied is None and isinstance(readout_gain, str):
        tied = _declared(look, candidates, heads, problems)
    if tied is None:
        if readout_gain is None:
            _nothing_reads_out(look, candidates, problems)
        return Readout("untied head" if heads else "no readout", tuple(leaf.path for leaf in heads))
    readout = through_gain(look, tied, readout_gain or None, problems)
    if readout.gains and readout_gain is None and root(type(look.model)) not in KNOWN_PACKAGES:
        _shared_norm(look, heads, readout, problems)
    return readout


def _shared_norm(look: Look, heads: Sequence[Leaf], readout: Readout, problems: Reasons) -> None:
    """A second head behind the same norm would be divided with the tied one, and have its own 1/m besides."""
    others = [leaf.path for leaf in heads if not _followed(leaf, look.found, look.placements)]
    if others:
        problems.add(
            "readout_gain",
            readout.gains[0],
            f"would carry the 1/m of {readout.heads[0]}, and {others[0]} may read it too, which has a 1/m of its own; "
            f"use MuSharedReadout for the tied head, or give readout_gain={readout.gains[0]!r} if it reads another",
        )


def _two_heads(look: Look, tied: Leaf, heads: Sequence[Leaf], problems: Reasons) -> None:
    placement = look.placements.get(tied.path)
    if placement is not None and placement.m_out != 1:
        problems.add(
            "readout_gain",
            tied.path,
            f"is multiplied with in the model's code, and {heads[0].path} reads out too: is it a second head, tied "
            "(then name the parameters of the norm before it: readout_gain='path.*'), or none, such as relative "
            "positions (then readout_gain=False)?",
        )


def _declared(look: Look, candidates: Sequence[Leaf], heads: Sequence[Leaf], problems: Reasons) -> Leaf | None:
    """The embedding that is the head because ``readout_gain`` says that one is."""
    sizes = _sizes_of(look.found, heads)
    possible = [leaf for leaf in candidates if leaf.shape[0] not in sizes]
    if not possible:
        problems.add(
            "readout_gain",
            "readout_gain",
            "is for a tied head, and none is tied here: "
            + (f"the head is {', '.join(leaf.path for leaf in heads)}" if heads else "there is no embedding")
            + "; leave it off",
        )
    return possible[0] if possible else None


def _nothing_reads_out(look: Look, candidates: Sequence[Leaf], problems: Reasons) -> None:
    """A network that embeds and has no head may well have one where it cannot be seen."""
    scaled = [leaf for leaf in candidates if look.placements[leaf.path].m_out != 1]
    if not scaled or any(_may_read_out(look, leaf) for leaf in look.found):
        return
    problems.add(
        "no_readout",
        scaled[0].path,
        "is an embedding, and nothing is found that reads out from the width. If it is the head too (in the loss, a "
        "helper, or by code that is not followed), name the parameters of the norm before the head: "
        "readout_gain='path.*'; if the hidden states are the output, or go into layers of one size at every width, say "
        "readout_gain=False",
    )


def _may_read_out(look: Look, leaf: Leaf) -> bool:
    """Whether a weight maps the width to a finite size that nothing takes up again: one of several heads."""
    dims, placement = look.dims[leaf.path], look.placements.get(leaf.path)
    if leaf.owner is None or len(dims) < 2 or _by_name_no_head(leaf):
        return False
    if placement is None:  # packed
        return dims[-1].infinite and not dims[0].infinite
    return placement.kind == "output-like" and (_called_head(leaf) or not _followed(leaf, look.found, look.placements))


def bottlenecks(heads: Sequence[str], found: Sequence[Leaf], placements: Mapping[str, Placement]) -> tuple[str, ...]:
    """Which of several heads may be none, because another layer takes up the size that they map to.

    Args:
        heads: The heads' weights; one alone, or heads by their names, are taken for heads.
        found: The model's parameters.
        placements: What each of them is.
    """
    leaves = [leaf for leaf in found if leaf.path in heads and not _called_head(leaf)]
    return tuple(leaf.path for leaf in leaves if len(heads) > 1 and _followed(leaf, found, placements))


def _followed(leaf: Leaf, found: Sequence[Leaf], placements: Mapping[str, Placement]) -> bool:
    """Whether another matrix takes up the finite size that ``leaf`` maps to: then it is a bottleneck, and no head."""
    return any(
        other.path != leaf.path
        and other.path in placements
        and placements[other.path].kind in ("input-like", "scalar-like")
        and len(other.shape) > 1
        and not hasattr(other.owner, "as_linear")
        and other.shape[-1] == leaf.shape[0]
        for other in found
    )


def own_readouts(model: Any, base_shapes: BaseShapes, found: Sequence[Leaf], problems: Reasons) -> dict[str, float]:
    """The multipliers of MuReadout and MuSharedReadout layers, by the path of the weight they read out with."""
    result = {}
    by_owner = {id(leaf.owner): leaf.path for leaf in found if leaf.name == "weight"}
    for path, module in modules(model):
        if not hasattr(module, "base_dims") or not hasattr(module, "width_mult"):
            continue
        shared = getattr(module, "shared", None)
        weight = by_owner.get(id(module if shared is None else shared))
        if weight is None:
            problems.add("shared", path, "reads out with an embedding that is no part of the model any more")
            continue
        width, size = base_shapes[weight][-1], module.width_mult * module.base_dims
        if module.base_dims != (width or size):
            problems.add("base_dims", path, f"was made for a base width of {module.base_dims}, not of {width or size}")
        result[READOUT if shared is not None else weight] = 1 / module.width_mult
    return result


def _untied(found: Sequence[Leaf], placements: Mapping[str, Placement]) -> list[Leaf]:
    candidates = [
        leaf
        for leaf in found
        if leaf.path in placements
        and placements[leaf.path].kind == "output-like"
        and leaf.owner is not None
        and len(leaf.shape) > 1
        and not _by_name_no_head(leaf)
    ]
    called = [leaf for leaf in candidates if _called_head(leaf)]
    if called:
        return called
    skeletons = [skeleton(leaf.path) for leaf in candidates]
    return [leaf for leaf, skeleton in zip(candidates, skeletons, strict=True) if skeletons.count(skeleton) == 1]


def _by_name_no_head(leaf: Leaf) -> bool:
    return any(fnmatchcase(part, pattern) for part in leaf.path.lower().split(".") for pattern in _NOT_HEADS)


def _called_head(leaf: Leaf) -> bool:
    return not hasattr(leaf.owner, "as_linear") and bool(set(leaf.path.split(".")[-2:]) & set(_HEADS))


def _tied(look: Look, candidates: Sequence[Leaf], heads: Sequence[Leaf]) -> tuple[Leaf | None, bool]:
    """The embedding whose weight gives the logits too, by a MuSharedReadout or by the model's code.

    And whether that is known by a product with its weight alone.
    """
    shared = [module.shared for _, module in modules(look.model) if hasattr(module, "shared")]
    for leaf in look.found:
        if any(leaf.owner is embedding for embedding in shared) and leaf.name == "weight":
            return leaf, False
    sizes = _sizes_of(look.found, heads)
    possible = {leaf.path for leaf in candidates}
    # A packed embedding has no kind.
    possible |= {leaf.path for leaf in look.found if hasattr(leaf.owner, "as_linear") and leaf.name == "weight"}
    return tied_by_code(look.model, [lf for lf in look.found if lf.path in possible and lf.shape[0] not in sizes])


def _sizes_of(found: Sequence[Leaf], heads: Sequence[Leaf]) -> set[int]:
    """How many logits the untied heads give; a packed head has no kind, and is one by its name."""
    known = {leaf.path for leaf in heads}
    return {leaf.shape[0] for leaf in found if leaf.path in known or (len(leaf.shape) > 1 and _called_head(leaf))}
