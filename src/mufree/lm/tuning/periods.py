"""What makes mlx-lm's trainer, which counts from 1, do the right thing at the right iteration of a resumed run.

The trainer asks ``iteration % period == 0`` of each period and whether the validation set is true. Both are values that
it is given, so both can know where the run really is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlx_lm.tuner.datasets import CacheDataset


class Since(int):
    """A period of the whole run, for a trainer that counts its iterations from 1 after ``made`` of them."""

    made: int

    def __new__(cls, period: int, made: int) -> Since:
        """A period and where the counting starts."""
        self = super().__new__(cls, period)
        self.made = made
        return self

    def __rmod__(self, iteration: int) -> int:
        """What is left of the iteration, counted from the run's beginning."""
        return (int(iteration) + self.made) % int(self)


class WhenDue(CacheDataset):
    """A validation set that is empty to the trainer's eye where no validation is due.

    Args:
        data: The rows.
        due: Whether one is due now.
    """

    def __init__(self, data: Any, due: Callable[[], bool]) -> None:
        super().__init__(data)
        self._due = due

    def __bool__(self) -> bool:
        return len(self) > 0 and self._due()
