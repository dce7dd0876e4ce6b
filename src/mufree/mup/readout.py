"""How a model's head gets its 1/m: found from the model, without a custom layer.

Three ways, all equal by Lemma J.1: an untied head by init and rates alone (Table 3 of Tensor Programs V); a tied head
through the gain of the norm before it; a multiplier in the model's own configuration. A tied tensor stays input-like:
the 1/m belongs to its use as a head, logits = (h · Wᵀ)·A_embedding/m.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dis import get_instructions
from fnmatch import fnmatchcase
from types import CodeType
from typing import Any, Literal

from ..errors import Reasons
from .forward import READOUT
from .kinds import Placement
from .shapes import BaseShapes
from .walk import Leaf, modules

Way = Literal["untied head", "tied head", "no readout", "frozen head"]
# Output-like by their axes, yet no readout: routers, fixed key/value heads, low-rank down-projections, adapters.
_NOT_HEADS = (
    "*gate*", "*router*", "k_proj", "v_proj", "key_proj", "value_proj", "wk", "wv", "q_a_proj", "kv_a_proj*",
    "lora_*", "*x_proj*",
)  # fmt: skip
_HEADS = ("lm_head", "head", "embed_out", "output", "readout", "classifier", "score")
_GAINS = ("weight", "bias", "scale", "gain")


@dataclass(frozen=True, slots=True)
class Readout:
    """Where the head is and how it gets its 1/m.

    Args:
        way: Which of the three ways, in words for the table.
        heads: The output-like weights that give the logits; the tied embedding if there is one.
        gains: The final norm's parameters that carry what is missing of the 1/m.
        share: The factor those carry, 1 if none.
    """

    way: Way
    heads: tuple[str, ...] = ()
    gains: tuple[str, ...] = ()
    share: float = 1.0
    notes: Mapping[str, str] = field(default_factory=dict)


def find_readout(
    model: Any,
    found: Sequence[Leaf],
    placements: Mapping[str, Placement],
    forward: Mapping[str, float],
    readout_gain: str | None,
    problems: Reasons,
) -> Readout:
    """Find the head, and for a tied one the norm gain that has to carry its 1/m.

    Args:
        model: The model.
        found: Its parameters.
        placements: What each of them is.
        forward: Forward multipliers relative to the base model: by path, and ``readout`` for the logits.
        readout_gain: Pattern of the final norm's parameters, where they cannot be found.
        problems: Collects what stands in the way.
    """
    heads = _untied(found, placements)
    tied = _tied(model, found, heads)
    if tied is None:
        if readout_gain is not None:
            problems.add("readout_gain", "readout_gain", "is for a tied head, and none is tied here; leave it off")
        return Readout("untied head" if heads else "no readout", tuple(leaf.path for leaf in heads))
    named = _named_gains(found, tied, readout_gain, problems)
    placement = placements.get(tied.path)
    if placement is None or placement.kind != "input-like":
        return Readout("tied head", (tied.path,))
    share = forward.get(tied.path, 1.0) / placement.m_out / forward.get(READOUT, 1.0)
    if math.isclose(share, 1.0, rel_tol=1e-12):
        return Readout("tied head", (tied.path,), notes={tied.path: "tied; the model's own multiplier"})
    gains = _final_gains(found, tied) if named is None else named
    if not gains and readout_gain is None:
        problems.add(
            "readout_gain",
            tied.path,
            "is embedding and head at once, so the gain of the norm before the head has to carry the 1/m, and no "
            "single norm with a gain stands after the repeated layers; name its parameters with readout_gain='path.*', "
            "give the model a multiplier of its own, or untie the head",
        )
    carried = f"carries the head's {share:.4g}"
    return Readout("tied head", (tied.path,), gains, share, {tied.path: "tied", **dict.fromkeys(gains, carried)})


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
        and not any(fnmatchcase(part, pattern) for part in leaf.path.lower().split(".") for pattern in _NOT_HEADS)
    ]
    called = [leaf for leaf in candidates if _called_head(leaf)]
    if called:
        return called
    skeletons = [_skeleton(leaf.path) for leaf in candidates]
    return [leaf for leaf, skeleton in zip(candidates, skeletons, strict=True) if skeletons.count(skeleton) == 1]


def _called_head(leaf: Leaf) -> bool:
    return not hasattr(leaf.owner, "as_linear") and bool(set(leaf.path.split(".")[-2:]) & set(_HEADS))


def _tied(model: Any, found: Sequence[Leaf], heads: Sequence[Leaf]) -> Leaf | None:
    """The embedding whose weight gives the logits too.

    Its module's name and ``as_linear`` stand in one function, or its ``weight`` is transposed.
    """
    shared = [module.shared for _, module in modules(model) if hasattr(module, "shared")]
    for leaf in found:
        if any(leaf.owner is embedding for embedding in shared) and leaf.name == "weight":
            return leaf
    classes = dict.fromkeys(type(module) for _, module in modules(model))
    named = [names for kind in classes for names in _names_of_tied(kind)]
    # A packed head has no kind, and is one by its name.
    sizes = {
        leaf.shape[0]
        for leaf in found
        if any(leaf is head for head in heads) or (len(leaf.shape) > 1 and _called_head(leaf))
    }
    for leaf in found:
        parts = leaf.path.split(".")
        if not hasattr(leaf.owner, "as_linear") or leaf.shape[0] in sizes:
            continue
        if any(part in names for names in named for part in parts[:-1]):
            return leaf
    return None


def _names_of_tied(kind: type) -> list[frozenset[str]]:
    if hasattr(kind, "as_linear"):
        return []
    own = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
    codes = [code for value in own.values() if (code := getattr(value, "__code__", None))]
    beside = [frozenset(code.co_names) for code in codes if "as_linear" in code.co_names]
    return [*beside, frozenset(name for code in codes for name in _transposed(code))]


def _transposed(code: CodeType) -> Iterator[str]:
    """Every ``name`` of an expression ``….name.weight.T``: any other may be a look-up, or a question of dtype."""
    steps = [step.argval for step in get_instructions(code)]
    for name, weight, turned in zip(steps, steps[1:], steps[2:], strict=False):
        if weight == "weight" and turned in ("T", "transpose", "swapaxes"):
            yield str(name)


def _named_gains(found: Sequence[Leaf], tied: Leaf, pattern: str | None, problems: Reasons) -> tuple[str, ...] | None:
    if pattern is None:
        return None
    named = [leaf for leaf in found if fnmatchcase(leaf.path, pattern)]
    if not named:
        problems.add("no_match", "readout_gain", f"{pattern!r} matches no parameter; give the final norm's")
    for leaf in named:
        if leaf.shape != (tied.shape[-1],):
            problems.add("readout_gain", leaf.path, f"has shape {leaf.shape}; a final norm's is ({tied.shape[-1]},)")
    return tuple(leaf.path for leaf in named)


def _final_gains(found: Sequence[Leaf], tied: Leaf) -> tuple[str, ...]:
    repeated = [index for index, leaf in enumerate(found) if leaf.path != _skeleton(leaf.path)]
    after = found[max(repeated, default=-1) + 1 :]
    size = tied.shape[-1]
    norms = [
        leaf
        for leaf in after
        if "norm" in type(leaf.owner).__name__.lower() and leaf.name in _GAINS and leaf.shape == (size,)
    ]
    if len({id(leaf.owner) for leaf in norms}) != 1:
        return ()
    return tuple(leaf.path for leaf in norms)


def _skeleton(path: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in path.split("."))
