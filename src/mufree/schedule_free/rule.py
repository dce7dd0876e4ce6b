"""The base iterate's rule: what distinguishes one schedule-free optimizer from another.

A rule says how ``z`` moves along a gradient taken at ``y``. Averaging, forms, state and modes are the same for all
rules and live elsewhere. Rules are frozen values, so that compiled functions can be kept by rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Multipliers:
    """What μP multiplies for one parameter: learning rate, eps and weight decay."""

    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0


Coefficients = tuple[mx.array, ...]
"""Scalars of one update, the same for every parameter with the same multipliers. A term left out ends the tuple."""


class Rule(ABC):
    """How the base iterate ``z`` moves.

    Attributes:
        number: By which a state says whose it is; 0 for any that is not of this package.
        family: Which family of optimizers scales must have been made for.
        moments: Names of the state arrays beside ``z``, each of the parameter's shape.
    """

    number: ClassVar[int] = 0
    family: ClassVar[str]
    moments: ClassVar[tuple[str, ...]]

    @abstractmethod
    def rate(self, k1: mx.array, learning_rate: mx.array) -> mx.array:
        """The rate of update ``k1``, counted from 1."""

    @abstractmethod
    def coefficients(self, k1: mx.array, rate: mx.array, multipliers: Multipliers) -> Coefficients:
        """The scalars that ``descend`` needs, for one set of multipliers."""

    @abstractmethod
    def descend(
        self, gradient: mx.array, y: mx.array, z: mx.array, moments: tuple[mx.array, ...], coefficients: Coefficients
    ) -> tuple[tuple[mx.array, ...], mx.array]:
        """One step of the base iterate; returns the new moments and the new ``z``, all of one shape and dtype."""

    @abstractmethod
    def late_moments(self, gradient: mx.array, k: mx.array) -> tuple[mx.array, ...]:
        """Moments of a parameter that joins after ``k`` updates, such that its first move is the rate."""
