"""The settings of :func:`mufree.mup_scales`, and what can be refused before a model is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import Reasons
from .rules import DECAYS, FAMILIES, Decay, Family, is_multiplier


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What :func:`~mufree.mup_scales` is asked for; it says what each is.

    Raises:
        Refused: A value that cannot be meant, with every reason.
    """

    family: Family = "adam"
    weight_decay: Decay = "independent"
    scale_eps: bool = True
    overrides: Mapping[str, str] = field(default_factory=dict)
    multipliers: Mapping[str, float] = field(default_factory=dict)
    readout_gain: str | Literal[False] | None = None
    base_head_dim: int | None = None

    def __post_init__(self) -> None:
        problems = Reasons()
        for name, allowed in (("family", FAMILIES), ("weight_decay", DECAYS), ("scale_eps", (True, False))):
            value = getattr(self, name)
            if value not in allowed:
                problems.add(name, name, f"{value!r} is none of {', '.join(map(str, allowed))}")
        for pattern, value in _patterns("overrides", self.overrides, problems):
            if not _is_a(value, str):
                problems.add(
                    "override", f"overrides[{pattern!r}]", f"{value!r} is no word; give a kind or axis letters"
                )
        for pattern, value in _patterns("multipliers", self.multipliers, problems):
            if not is_multiplier(value):
                problems.add("out_of_range", f"multipliers[{pattern!r}]", f"{value!r}; give a finite number above 0")
        if self.readout_gain is not False and not _is_a(self.readout_gain, str | None):
            problems.add("readout_gain", "readout_gain", f"{self.readout_gain!r} is no path pattern, and not False")
        size = self.base_head_dim
        if size is not None and not (_is_a(size, int) and size >= 1):
            problems.add("out_of_range", "base_head_dim", f"{size!r} is no size; give a whole number above 0")
        problems.refuse_if_any()


def _patterns(name: str, value: object, problems: Reasons) -> tuple[tuple[object, object], ...]:
    if not isinstance(value, Mapping) or not all(isinstance(pattern, str) for pattern in value):
        problems.add(name, name, f"{value!r} is no mapping from path patterns")
        return ()
    return tuple(value.items())


def _is_a(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
