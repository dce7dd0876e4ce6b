"""What an optimizer asks of scales: multipliers by parameter path, made for one family of optimizers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol, SupportsFloat

from ..errors import Reasons
from ..sizes import no_scales
from .rule import Multipliers


class ScaleLike(Protocol):
    """The multipliers of one parameter."""

    @property
    def lr(self) -> float:
        """Multiplies the learning rate."""

    @property
    def eps(self) -> float:
        """Multiplies eps."""

    @property
    def weight_decay(self) -> float:
        """Multiplies the weight decay."""


ScaleMapping = Mapping[str, ScaleLike]
"""Path → multipliers, with an attribute ``family`` that names the optimizers they were made for."""


def check_scales(reasons: Reasons, scales: ScaleMapping, family: str) -> None:
    """Note everything that keeps ``scales`` from being used by optimizers of ``family``."""
    none = no_scales(scales)
    if none is not None:
        reasons.add("scales", "scales", none)
        return
    made_for = getattr(scales, "family", None)
    if made_for != family:
        reasons.add(
            "family",
            "scales",
            f"made for the {made_for!r} family of optimizers; this optimizer takes {family!r}; make them with "
            f"mup_scales(…, family={family!r}), of a fresh model with parametrize(…, family={family!r})",
        )
        return
    for path, scale in scales.items():
        for name in ("lr", "eps", "weight_decay"):
            value = getattr(scale, name, None)
            if not (isinstance(value, SupportsFloat) and math.isfinite(value) and float(value) >= 0):
                reasons.add("out_of_range", f"scales[{path!r}].{name}", f"{value!r}; a finite number ≥ 0 is needed")


def multipliers(scales: ScaleMapping | None, path: str) -> Multipliers:
    """The multipliers of the parameter at ``path``; it must be in ``scales``."""
    if scales is None:
        return Multipliers()
    scale = scales[path]
    return Multipliers(float(scale.lr), float(scale.eps), float(scale.weight_decay))
