"""The learning rate of a schedule-free optimizer, an array of its state like everything that changes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from ..errors import Reasons
from .averaging import RESERVED
from .checks import check_rate
from .tree import tracing


class PeakRate:
    """The rate that updates start from, for an optimizer with ``state``, and the precision of its scalars."""

    state: dict[str, Any]
    _rate: float | None

    @property
    def learning_rate(self) -> mx.array:
        """The peak rate that the next update starts from. Set it to a number or a scalar array at any time."""
        return self.state["learning_rate"]

    @learning_rate.setter
    def learning_rate(self, value: float | mx.array) -> None:
        reasons = Reasons()
        check_rate(reasons, value)
        reasons.refuse_if_any()
        self._rate = None if isinstance(value, mx.array) else float(value)
        self.state["learning_rate"] = self._scalar(value)

    @property
    def scheduled_lr(self) -> mx.array:
        """The rate that the last update really used, warmup included; 0 before the first."""
        return self.state[RESERVED]["scheduled_lr"]

    @property
    def _scalar_dtype(self) -> mx.Dtype:
        return self.state[RESERVED]["weight_sum"].dtype

    def _scalar(self, value: Any) -> mx.array:
        """A rate as an array without axes: with one it would give one to parameters that have none."""
        return value.reshape(()) if isinstance(value, mx.array) else mx.array(float(value), self._scalar_dtype)

    def _widen(self) -> None:
        """Make the scalars float64, with the rate as it was given: through float32 it would lose 4e-9."""
        if self._scalar_dtype == mx.float64:
            return
        scalars = self.state[RESERVED]
        scalars.update({name: value.astype(mx.float64) for name, value in scalars.items() if value.dtype == mx.float32})
        rate = self.state["learning_rate"]
        if self._rate is not None and not tracing(rate) and rate.item() == mx.array(self._rate).item():
            self.state["learning_rate"] = mx.array(self._rate, mx.float64)
        else:
            self.state["learning_rate"] = rate.astype(mx.float64)
