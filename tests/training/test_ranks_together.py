"""Ranks that train together make one process's updates, whatever a micro-batch is and counts by."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mufree import build_optimizer, plan_optimizer
from mufree.training.loop import Trainer
from mufree.training.packing import packed_loss, targets_of
from mufree.training.ranks import ALONE, Ranks
from rank_processes import replayed

AS_ONE = 1e-6
"""Relative, of y and z after five updates: float32 sums in another order. It does 6e-8; parts weighed alike, 5e-2."""

HALF = 0.05
"""Relative to how far z went: bfloat16 gradients, of half of the rows each. It does 2e-2; parts weighed alike, 0.5."""

ROWS, LENGTH, UPDATES = 4, 6, 5


class Bigrams(nn.Module):
    """Logits of the next of 7 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.head = nn.Linear(8, 7)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.head(mx.tanh(self.embedding(tokens)))


def padded(number: int) -> tuple[np.ndarray, np.ndarray]:
    """A packed micro-batch whose later rows are mostly padding."""
    random = np.random.default_rng([3, number])
    ids = random.integers(0, 7, (ROWS, LENGTH + 1)).astype(np.int32)
    return ids, np.array([LENGTH, LENGTH - number % 3, 1 + number % 2, 2], np.int32)


PACKED = {"loss": packed_loss, "count": targets_of}


def whole(number: int) -> np.ndarray:
    """A micro-batch without padding."""
    return padded(number)[0]


def trained(ranks: Ranks, batch: Any = padded, dtype: Any = mx.float32, clip: Any = None, **settings: Any) -> Any:
    """What five updates come to, as NumPy has it."""
    mx.random.seed(1)
    model = Bigrams()
    model.set_dtype(dtype)
    plan = plan_optimizer(optimizer="schedule_free_adamw", lr=0.02, warmup_steps=2, max_grad_norm=clip)
    kind: Any = PACKED if batch is padded else {}
    trainer = Trainer(model, build_optimizer(plan, model), batch, ranks=ranks, **kind, **settings)
    mx.eval(model.parameters())
    start = numbers(model)
    losses = [trainer.advance() for _ in range(UPDATES)]
    return {
        "start": start,
        "y": numbers(model),
        "z": z_of(trainer),
        "losses": losses,
        "measures": trainer.measures(),
        "position": (trainer.position.tokens, trainer.position.offset),
        "valid": trainer.evaluate([batch(number) for number in range(7, 10)]),
        "dtypes": getattr(ranks, "dtypes", set()),
    }


def numbers(model: nn.Module) -> np.ndarray:
    return np.concatenate([np.array(v.astype(mx.float32)).ravel() for _, v in tree_flatten(model.parameters())])


def z_of(trainer: Trainer) -> np.ndarray:
    state = tree_flatten(trainer.optimizer.state)
    return np.concatenate([np.array(v).ravel() for path, v in state if path.endswith(".z")])


def apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("weight", ["batch", "tokens"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_padded_rows_on_ranks_are_one_batch(ranks: int, weight: Any, clip: float | None) -> None:
    """Losses, weights, gradient norm before clipping, tokens and validation are those of one process, at each rank."""
    settings = {"accumulation": 2, "accumulation_weight": weight, "clip": clip}
    alone = trained(ALONE, **settings)
    found = replayed(ranks, lambda one: trained(one, **settings))
    for one in found:
        assert apart(one["y"], alone["y"]) < AS_ONE
        assert apart(one["z"], alone["z"]) < AS_ONE
        assert one["losses"] == pytest.approx(alone["losses"], rel=AS_ONE)
        assert one["measures"] == pytest.approx(alone["measures"], rel=10 * AS_ONE)
        assert one["valid"] == pytest.approx(alone["valid"], rel=AS_ONE)
        assert one["position"] == alone["position"]
        assert np.array_equal(one["y"], found[0]["y"])
        assert one["losses"] == found[0]["losses"]
    assert alone["measures"]["gradient_norm"] > 0.05


def test_parts_weighed_alike_are_not_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the plain mean of the ranks' means."""
    alone = trained(ALONE)
    monkeypatch.setattr(Trainer, "_weights", lambda *_: None)
    found = replayed(2, trained)
    assert apart(found[0]["y"], alone["y"]) > 1000 * AS_ONE


@pytest.mark.parametrize("batch", [whole, padded])
@pytest.mark.parametrize(("accumulation", "weight"), [(1, "batch"), (2, "batch"), (2, "tokens")])
def test_bfloat16_gradients_are_averaged_in_float32(batch: Any, accumulation: int, weight: Any) -> None:
    """Two ranks go where one goes, and exchange no rounded sums."""
    settings: Any = {"batch": batch, "dtype": mx.bfloat16, "accumulation": accumulation, "accumulation_weight": weight}
    alone = trained(ALONE, **settings)
    found = replayed(2, lambda one: trained(one, **settings))
    went = np.linalg.norm(alone["z"] - alone["start"])
    for one in found:
        assert one["dtypes"] == {mx.float32}
        assert np.linalg.norm(one["z"] - alone["z"]) / went < HALF
        assert np.array_equal(one["z"], found[0]["z"])
