"""Which parameters decay."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mufree.errors import Reasons, refuse
from mufree.plan import OptimizerPlan

Mask = Callable[[str, mx.array], bool]
NO_DECAY_NAMES = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def decaying(plan: OptimizerPlan, model: Any, leaves: Mapping[str, Any]) -> frozenset[str]:
    """The paths that decay, by the plan's mask.

    ``"hf"`` is what transformers' Trainer does: no decay inside a LayerNorm, nor where the path, in lower case, has
    ``bias``, ``layernorm`` or ``rmsnorm`` anywhere, ``norm`` as a part or ``_norm`` at the end of one. An RMSNorm by
    another name decays there, and here.

    Raises:
        Refused: The mask needs module types and the model is no module, or it is a function that fails or returns
            something else than a bool: every path for which it does.
    """
    if plan.weight_decay == 0:
        return frozenset()
    mask, reasons = _mask(plan, model), Reasons()
    found = frozenset(path for path, leaf in leaves.items() if _asked(reasons, mask, path, leaf))
    reasons.refuse_if_any()
    return found


def _mask(plan: OptimizerPlan, model: Any) -> Mask:
    if plan.decay_mask == "all":
        return lambda _path, _array: True
    if plan.decay_mask == "hf":
        if not isinstance(model, nn.Module):
            refuse(
                "needs_model",
                "model",
                f"{type(model).__name__}, but decay_mask='hf' looks at module types; give the model",
            )
        norms = tuple(f"{path}." for path, module in model.named_modules() if isinstance(module, nn.LayerNorm))
        return lambda path, _array: not (path.startswith(norms) or NO_DECAY_NAMES.search(path.lower()))
    return plan.decay_mask


def _asked(reasons: Reasons, mask: Mask, path: str, leaf: Any) -> bool:
    """What the mask says of one parameter, or False with the problem kept."""
    try:
        decays: Any = mask(path, leaf)
    except Exception as error:  # the function is the user's, and may raise whatever it likes
        reasons.add(
            "mask_failed",
            "decay_mask",
            f"raised {error!r} for {path}; give a function of path and array that returns True (decays) or False",
        )
        return False
    if isinstance(decays, bool):
        return decays
    reasons.add("not_a_flag", "decay_mask", f"returned {decays!r} for {path}; return True (decays) or False")
    return False
