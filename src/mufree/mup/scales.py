"""What μP multiplies for every parameter of a model, as a value that is handed on; nothing is written on arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .look import Readout
from .rules import Family, Kind
from .shapes import Dim


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

    Example:
        >>> from mufree import Scale
        >>> Scale("hidden", m_in=8.0, m_out=8.0, init=8**-0.5, lr=1 / 8, eps=1 / 8, weight_decay=8.0).lr
        0.125

    References:
        Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, tables 3 and 8 and appendix B.3.
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

    Example:
        >>> from mufree import Scale, Scales
        >>> scales = Scales({"gain": Scale("input-like", m_out=8.0)})
        >>> scales["gain"].m_out, scales.family, len(scales)
        (8.0, 'adam', 1)
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
