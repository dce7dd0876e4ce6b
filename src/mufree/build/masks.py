"""Which parameters decay."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mufree.errors import refuse
from mufree.plan import OptimizerPlan

Mask = Callable[[str, mx.array], bool]
NO_DECAY_NAMES = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def decay_mask(plan: OptimizerPlan, model: Any) -> Mask:
    """The plan's mask as a function of path and array.

    ``"hf"`` is what transformers' Trainer does: no decay inside a LayerNorm, nor where the path, in lower case, has
    ``bias``, ``layernorm`` or ``rmsnorm`` anywhere, ``norm`` as a part or ``_norm`` at the end of one. An RMSNorm by
    another name decays there, and here.

    Raises:
        Refused: The mask needs module types and the model is no module. When it is called: a function that returns
            something else than a bool.
    """
    if plan.decay_mask == "all" or plan.weight_decay == 0:
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
    return _checked(plan.decay_mask)


def _checked(function: Callable[[str, Any], Any]) -> Mask:
    def mask(path: str, array: mx.array) -> bool:
        decays = function(path, array)
        if not isinstance(decays, bool):
            refuse("not_a_flag", "decay_mask", f"returned {decays!r} for {path}; return True (decays) or False")
        return decays

    return mask
