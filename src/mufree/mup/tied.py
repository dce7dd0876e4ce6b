"""How a tied head gets its 1/m: through the gain of the norm that is seen to come last before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from ..errors import Reasons
from .forward import READOUT
from .logits import last_before, unknown_factor
from .look import Look, Readout
from .sources import head_expressions, sources
from .walk import Leaf, skeleton

_GAINS = ("weight", "bias", "scale", "gain")
_SAY = "multipliers={'readout': base width / width}"


def through_gain(look: Look, tied: Leaf, pattern: str | None, problems: Reasons) -> Readout:
    """The readout of a tied head.

    Args:
        look: The model and what is known of it.
        tied: The embedding's weight.
        pattern: Pattern of the parameters that carry the 1/m, ``None`` if they are to be found.
        problems: Collects what stands in the way.
    """
    found, forward = look.found, look.forward
    named = _named_gains(found, tied, pattern, problems)
    placement = look.placements.get(tied.path)
    if placement is None or placement.kind != "input-like":
        return Readout("tied head", (tied.path,))
    if look.forward_of_tied_is_unclear(tied.path):
        problems.add(
            "tied_multiplier",
            f"multipliers[{tied.path!r}]",
            "is for a weight that is embedding and head at once, which this would count twice. Where the model's own "
            f"code multiplies the logits, give {_SAY} instead; where it multiplies the embedding's output, give "
            "multipliers={'readout': 1.0} beside it",
        )
        return Readout("tied head", (tied.path,))
    share = forward.get(tied.path, 1.0) / placement.m_out / forward.get(READOUT, 1.0)
    if math.isclose(share, 1.0, rel_tol=1e-12):
        own = forward.get(tied.path, 1.0) != 1 or READOUT in forward
        note = "tied; the model's own multiplier" if own else "tied"
        return Readout("tied head", (tied.path,), notes={tied.path: note})
    code = sources(look.model)
    heads = head_expressions(look.model, code, tied)
    factor = unknown_factor(heads, look.found) if READOUT not in forward else None
    if factor is not None:
        problems.add(
            "tied_multiplier",
            tied.path,
            f"is embedding and head at once, and the model's own code has a factor on the logits: {factor}. Say what "
            f"it is relative to the base model: {_SAY} if it is a 1/m, multipliers={{'readout': 1.0}} if it is the "
            "same at every width",
        )
        return Readout("tied head", (tied.path,))
    gains = (
        _evident_gains(look, tied, last_before(heads, code, READOUT in forward), problems) if named is None else named
    )
    carried = f"carries the head's {share:.4g}"
    return Readout("tied head", (tied.path,), gains, share, {tied.path: "tied", **dict.fromkeys(gains, carried)})


def _evident_gains(look: Look, tied: Leaf, last: Any, problems: Reasons) -> tuple[str, ...]:
    """The parameters of the norm that comes last before the head: the one in the code, or by the modules' order."""
    gains = _final_gains(look.found, tied)
    owner = next((leaf.owner for leaf in look.found if leaf.path in gains), None)
    if not gains:
        why = "no single norm with a gain stands after the repeated layers"
    elif last is owner or (last is None and not _hidden_after(look, gains[-1])):
        return gains
    else:
        why = f"it is not evident that {gains[0].rpartition('.')[0]} comes last before the head"
    problems.add(
        "readout_gain",
        tied.path,
        f"is embedding and head at once, so the gain of the norm before the head has to carry the 1/m, and {why}; "
        "if the code multiplies neither the head's input nor the logits by what depends on the width, name that "
        "norm's parameters with readout_gain='path.*'; else, or without such a norm, use a multiplier of its own: "
        f"MuSharedReadout as its head, or a factor in its code and {_SAY}",
    )
    return ()


def _hidden_after(look: Look, path: str) -> bool:
    """Whether a layer of the width is defined after a parameter, and may come after it in the forward pass too."""
    order = [leaf.path for leaf in look.found]
    later = order[order.index(path) + 1 :]
    return any(place.kind == "hidden" for name in later if (place := look.placements.get(name)) is not None)


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
    repeated = [index for index, leaf in enumerate(found) if leaf.path != skeleton(leaf.path)]
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
