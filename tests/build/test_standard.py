"""Built optimizers do what was planned."""

from __future__ import annotations

import mlx.core as mx
import mlx.optimizers as optim
import pytest

from mufree import build_optimizer, plan_optimizer

FLOAT32 = 1e-6  # one update of size 1e-3 on weights of size 1, a few roundings in float32


def test_adamw_torch_first_update_is_the_rate() -> None:
    """Without bias correction it would be 3.16 rates."""
    optimizer = build_optimizer(plan_optimizer(optimizer="adamw_torch", lr=1e-3))
    assert type(optimizer) is optim.AdamW
    after = optimizer.apply_gradients({"w": mx.array([0.5, -2.0])}, {"w": mx.array([1.0, 1.0])})["w"]
    assert (1 - after).tolist() == pytest.approx([1e-3, -1e-3], abs=FLOAT32)
