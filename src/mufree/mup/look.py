"""What is known of a model when its head is looked for, and what is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .forward import READOUT
from .kinds import Placement
from .shapes import Dim
from .walk import Leaf

Way = Literal["untied head", "tied head", "no readout", "frozen head"]


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


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of a model when its head is looked for.

    Args:
        model: The model.
        found: Its parameters.
        dims: Their axes.
        placements: What each of them is.
        forward: Forward multipliers relative to the base model: by path, and ``readout`` for the logits.
        given: Those of them that the user gave.
    """

    model: Any
    found: Sequence[Leaf]
    dims: Mapping[str, tuple[Dim, ...]]
    placements: Mapping[str, Placement]
    forward: Mapping[str, float]
    given: Mapping[str, float]

    def forward_of_tied_is_unclear(self, path: str) -> bool:
        """Whether a multiplier was given for a tied weight without saying which of its two uses it multiplies."""
        return path in self.given and READOUT not in self.given
