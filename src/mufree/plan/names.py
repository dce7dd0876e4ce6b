"""Every optimizer name: what it is built as, or why it is not.

The names are transformers' own (41 in 5.24), older ones of its, and the plain names of MLX's classes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mufree.errors import Reasons

from .families import ADAM_BETAS, FAMILIES, Family


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A name that is built.

    Args:
        family: The update rule, a key of :data:`~mufree.plan.families.FAMILIES`.
        warning: What differs from what the name promises, though not in the numbers.
        note: What the name means here, where others mean something else by it.
        betas: Default betas, where this name's are not the family's.
    """

    family: str
    warning: str = ""
    note: str = ""
    betas: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A name that is refused: why, and what comes nearest."""

    why: str
    nearest: str


def _layout(family: str, what: str, betas: tuple[float, float] | None = None) -> Built:
    return Built(family=family, betas=betas, warning=f"the same numbers, but not {what}")


_MLX_LM_ADAM = "bias-corrected as in torch; the same name in an mlx-lm configuration has no bias correction"
_QUANTISED = "keeps its moments in 8 or 4 bits, whose rounding MLX does not reproduce"
_EMAMIX = "mixes in a second, slower average that MLX has no rule for (5 % from AdamW after 200 updates)"
_LOW_RANK = "projects gradients to a low rank, which MLX has no rule for"

BUILT: Mapping[str, Built] = {
    "adamw": Built(family="adamw", note=_MLX_LM_ADAM),
    "adamw_torch": Built(family="adamw"),
    "adamw_torch_fused": Built(family="adamw"),
    "adamw_hf": Built(
        family="adamw_hf", note="eps before the bias correction, decay after the step, as transformers 4's"
    ),
    "adam": Built(family="adam", note=_MLX_LM_ADAM),
    "sgd": Built(family="sgd"),
    "lion": Built(
        family="lion", note="betas default to the paper's (0.9, 0.99); lion_32bit's to transformers' (0.9, 0.999)"
    ),
    "lion_32bit": Built(family="lion", betas=ADAM_BETAS),
    "adafactor": Built(
        family="adafactor",
        note="no relative step and no scaling by the parameter, as in transformers; in mlx-lm it has both",
    ),
    "adagrad": Built(family="adagrad"),
    "adamax": Built(family="adamax", note="bias-corrected, with eps inside the maximum, as torch's"),
    "rmsprop": Built(family="rmsprop"),
    "adadelta": Built(family="adadelta"),
    "muon": Built(
        family="muon",
        note="the rate of an (out, in) matrix is × √max(1, out/in): a transposed layout is another setting",
    ),
    "paged_adamw_32bit": _layout("adamw", "paged to host memory"),
    "paged_lion_32bit": _layout("lion", "paged to host memory", ADAM_BETAS),
    "rmsprop_bnb": _layout("rmsprop", "bitsandbytes' kernel"),
    "rmsprop_bnb_32bit": _layout("rmsprop", "bitsandbytes' kernel"),
    "adamw_torch_xla": _layout("adamw", "XLA's sync-free kernel"),
    "adamw_torch_npu_fused": _layout("adamw", "an NPU's fused kernel"),
    "adamw_anyprecision": _layout(
        "adamw_anyprecision", "torchdistx's class, of which only its float32 defaults are built"
    ),
    "schedule_free_adamw": Built(family="schedule_free_adamw"),
    "schedule_free_radam": Built(family="schedule_free_radam"),
    "schedule_free_sgd": Built(family="schedule_free_sgd"),
}

UNBUILT: Mapping[str, Unbuilt] = {
    **{
        name: Unbuilt(_QUANTISED, "adamw_torch, the same rule with float32 moments")
        for name in ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_4bit", "adamw_torch_8bit")
    },
    **{
        name: Unbuilt(_QUANTISED, "lion_32bit, the same rule with a float32 moment")
        for name in ("lion_8bit", "paged_lion_8bit")
    },
    "rmsprop_bnb_8bit": Unbuilt(_QUANTISED, "rmsprop, the same rule with a float32 moment"),
    **{
        name: Unbuilt(_EMAMIX, "adamw_torch, without the second average")
        for name in ("ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit")
    },
    **{
        name: Unbuilt(_LOW_RANK, "adamw_torch on LoRA layers, or on all weights")
        for name in (
            "galore_adamw",
            "galore_adamw_8bit",
            "galore_adamw_layerwise",
            "galore_adamw_8bit_layerwise",
            "apollo_adamw",
            "apollo_adamw_layerwise",
        )
    },
    **{
        name: Unbuilt(_LOW_RANK, "adafactor, whose second moment is factored")
        for name in ("galore_adafactor", "galore_adafactor_layerwise")
    },
    "lomo": Unbuilt("updates inside the backward pass, which MLX has no hook for", "sgd"),
    "adalomo": Unbuilt("updates inside the backward pass, which MLX has no hook for", "adafactor"),
    "grokadamw": Unbuilt("amplifies slow gradients by a signal that MLX has no rule for", "adamw_torch"),
    "stable_adamw": Unbuilt("clips each update by its own RMS, which MLX's AdamW does not", "adamw_torch"),
    "adamw_apex_fused": Unbuilt("is an apex kernel that transformers 5 no longer has", "adamw_torch"),
}


def normalised(name: str) -> str:
    """A name as it is looked up: stripped and lower-cased."""
    return name.strip().lower()


def check_name(reasons: Reasons, name: Any) -> Built | None:
    """What a name is built as, or ``None`` with the problem kept."""
    if not isinstance(name, str):
        reasons.add(
            "not_a_name", "optimizer", f"{name!r} is not a string; give an optimizer's name, e.g. 'adamw_torch'"
        )
        return None
    key = normalised(name)
    if key in BUILT:
        return BUILT[key]
    if key in UNBUILT:
        unbuilt = UNBUILT[key]
        reasons.add("not_built", "optimizer", f"{name!r} {unbuilt.why}; the nearest is {unbuilt.nearest}")
    else:
        near = difflib.get_close_matches(key, [*BUILT, *UNBUILT], n=3)
        hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
        reasons.add("unknown_name", "optimizer", f"{name!r} is not known{hint}; give one of {', '.join(sorted(BUILT))}")
    return None


def family_of(built: Built) -> Family:
    """The family of a name."""
    return FAMILIES[built.family]


def resolve_optimizer_name(name: str) -> str:
    """The class that a name is built as, e.g. ``"AdamW"``.

    Args:
        name: An optimizer's name; surrounding blanks and case do not matter.

    Returns:
        The name of a class in ``mlx.optimizers`` or mufree.

    Raises:
        Refused: The name is unknown, or names a rule that cannot be built exactly.

    Example:
        >>> from mufree import resolve_optimizer_name
        >>> resolve_optimizer_name(" AdamW_Torch ")
        'AdamW'
    """
    reasons = Reasons()
    built = check_name(reasons, name)
    reasons.refuse_if_any()
    return family_of(built).optimizer_name if built else ""
