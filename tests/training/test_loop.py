"""The training step and the owner of position and numbering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree, NonFiniteLoss
from mufree.training import load_checkpoint, save_checkpoint
from mufree.training.loop import Position, Trainer
from mufree.training.step import next_token_loss
from training_models import Embedded

# float32 sums of a dozen terms in another order.
SAME = 1e-6


def batch(number: int, rows: int = 2) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 7, (rows, 6)).astype(np.int32)


def trainer(dropout: float = 0.0, *, seed: int = 1, optimizer: Any = None, **settings: Any) -> Trainer:
    mx.random.seed(seed)
    return Trainer(Embedded(dropout), optimizer or AdamWScheduleFree(0.05, warmup_steps=3), batch, **settings)


def bits(trainer: Trainer) -> dict[str, Any]:
    arrays = tree_flatten([trainer.model.parameters(), trainer.optimizer.state])
    return {path: array.tolist() for path, array in arrays}


def test_the_loss_is_that_of_each_next_token() -> None:
    """Against numpy, and not against the token itself: a model that copies its input is bad at it."""
    tokens = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], np.int32)
    logits = mx.random.normal((2, 3, 7))
    probabilities = np.exp(np.array(logits, np.float64))
    probabilities /= probabilities.sum(-1, keepdims=True)
    right = np.take_along_axis(probabilities, tokens[:, 1:, None].astype(int), -1)
    assert next_token_loss(lambda _: logits, mx.array(tokens)).item() == pytest.approx(-np.log(right).mean(), rel=SAME)
    copying = next_token_loss(lambda x: 10.0 * (mx.arange(7) == x[..., None]), mx.array(tokens))
    assert copying.item() > 5
    assert next_token_loss(lambda x: mx.zeros((*x.shape, 7), mx.bfloat16), mx.array(tokens)).dtype == mx.float32


@pytest.mark.parametrize("optimizer", [AdamWScheduleFree, optim.SGD])
def test_accumulated_micro_batches_are_one_large_batch(optimizer: Any) -> None:
    """Three of two rows give the update and the loss of one of six; SGD sees the gradient's size, Adam does not."""
    small = trainer(accumulation=3, optimizer=optimizer(0.05))
    large = trainer(optimizer=optimizer(0.05))
    large._batch = lambda number: np.concatenate([batch(3 * number + part) for part in range(3)])
    for _ in range(4):
        assert small.advance() == pytest.approx(large.advance(), rel=SAME)
    for path, value in tree_flatten(small.model.parameters()):
        other = dict(tree_flatten(large.model.parameters()))[path]
        assert mx.abs(value - other).max().item() < 100 * SAME
    assert (small.position.micro_batches, large.position.micro_batches) == (12, 4)
    assert small.position.tokens == large.position.tokens == 4 * 6 * 5


def test_batches_are_numbered_from_zero_without_a_gap() -> None:
    """Two an update: 0, 1; 2, 3; and on from where a position says."""
    asked: list[int] = []
    made = trainer(accumulation=2)
    made._batch = lambda number: asked.append(number) or batch(number)  # type: ignore[func-returns-value]
    made.advance()
    made.advance()
    made.position = Position(update=7, micro_batches=14)
    made.advance()
    assert asked == [0, 1, 2, 3, 14, 15]
    assert made.position.update == 8


def test_compiled_updates_are_the_eager_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scalars bit for bit, weights and state to float32's last digits, after 100 updates with accumulation."""
    results = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(mx, "compile", lambda function, **_: function)
        made = trainer(accumulation=2)
        for _ in range(100):
            made.advance()
        results.append(dict(tree_flatten([made.model.parameters(), made.optimizer.state])))
    for path, ours in results[0].items():
        theirs = results[1][path]
        if ours.ndim == 0:
            assert ours.item() == theirs.item(), path
        else:
            assert mx.linalg.norm(ours - theirs).item() <= SAME * mx.linalg.norm(theirs).item(), path


@pytest.mark.parametrize("optimizer", [AdamWScheduleFree, optim.AdamW])
def test_with_dropout_a_resumed_training_is_the_uninterrupted_one(tmp_path: Path, optimizer: Any) -> None:
    """Masks go on from the saved random state, in a new model with another seed, and into a step that has run."""
    straight = trainer(0.5, optimizer=optimizer(0.05))
    losses = [straight.advance() for _ in range(7)]
    first = trainer(0.5, optimizer=optimizer(0.05))
    for _ in range(4):
        first.advance()
    first.evaluate([batch(99)])
    save_checkpoint(tmp_path / "c", first.model, first.optimizer, {"updates": 4})
    for already in (0, 2):
        second = trainer(0.5, seed=5, optimizer=optimizer(0.05))
        for _ in range(already):
            second.advance()
        load_checkpoint(tmp_path / "c", second.model, second.optimizer)
        second.position = Position(update=4, micro_batches=4)
        assert [second.advance() for _ in range(3)] == losses[4:]
        assert bits(second) == bits(straight)
    mx.random.seed(0)
    third = trainer(0.5, seed=5, optimizer=optimizer(0.05))
    load_checkpoint(tmp_path / "c", third.model, third.optimizer)
    mx.random.seed(6)  # the control: other masks
    third.position = Position(update=4, micro_batches=4)
    assert third.advance() != losses[4]


def test_evaluation_is_at_x_or_y_without_dropout_and_changes_nothing() -> None:
    """The mean over all rows, also where the last batch has fewer; the random state is untouched."""
    made = trainer(0.5)
    for _ in range(5):
        made.advance()
    before, key = bits(made), mx.random.state[0].tolist()
    batches = [batch(1, rows=3), batch(2, rows=1)]
    found = {at: made.evaluate(batches, at=at) for at in ("x", "y")}
    assert (bits(made), mx.random.state[0].tolist()) == (before, key)
    assert made.model.training
    whole = mx.array(np.concatenate(batches))
    made.model.eval()
    assert found["y"] == pytest.approx(next_token_loss(made.model, whole).item(), rel=SAME)
    with made.optimizer.averaged(made.model):
        assert found["x"] == pytest.approx(next_token_loss(made.model, whole).item(), rel=SAME)
    assert abs(found["x"] - found["y"]) > 100 * SAME


def test_what_is_not_finite_is_told() -> None:
    """A loss in training and in validation, and weights whose loss nobody has seen yet."""
    made = trainer()
    made.check_finite()
    made.model.head.bias = mx.full((7,), mx.inf)
    for look in (made.check_finite, made.advance, lambda: made.evaluate([batch(0)], at="y")):
        with pytest.raises(NonFiniteLoss, match=r"update [01]"):
            look()
    other = trainer()
    other.advance()
    other.optimizer.state["head"]["bias"]["z"] = mx.full((7,), mx.nan)
    with pytest.raises(NonFiniteLoss, match="a weight after update 1"):
        other.check_finite()


@pytest.mark.parametrize("optimizer", [AdamWScheduleFree(0.1), optim.AdamW(0.1)], ids=["schedule-free", "stock"])
@pytest.mark.parametrize("where", ["loss", "update"])
def test_an_exception_inside_the_trace_leaves_the_last_good_arrays(
    optimizer: Any, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of another shape that fails while the step is traced: everything is as before, can be saved, goes on."""
    model = Embedded(0.5)
    trainer = Trainer(model, optimizer, batch)
    trainer.advance()
    good = [dict(tree_flatten(tree)) for tree in (model.parameters(), optimizer.state)]
    before = [{path: array.tolist() for path, array in tree.items()} for tree in good]
    key = mx.random.state[0].tolist()
    apply = type(optimizer).apply_single if where == "update" and isinstance(optimizer, optim.AdamW) else None
    if where == "loss":
        monkeypatch.setattr(
            Embedded, "__call__", lambda self, tokens: self.head(self.dropout(self.embedding(tokens)) @ tokens)
        )
    elif apply is not None:
        monkeypatch.setattr(optimizer, "apply_single", _failing_late(optimizer.apply_single))
    else:
        monkeypatch.setattr(optimizer, "_advance", _failing_late(optimizer._advance, after=0))
    trainer._batch = lambda number: batch(number, rows=3)
    with pytest.raises((ValueError, RuntimeError)):
        trainer.advance()
    monkeypatch.undo()
    after = [dict(tree_flatten(tree)) for tree in (model.parameters(), optimizer.state)]
    assert [{path: array.tolist() for path, array in tree.items()} for tree in after] == before
    assert mx.random.state[0].tolist() == key
    assert trainer.position.update == 1
    save_checkpoint(tmp_path / "saved", model, optimizer, {})
    trainer._batch = batch
    assert np.isfinite(trainer.advance())


def _failing_late(function: Any, after: int = 1) -> Any:
    """The function, which after that many calls does its work and then raises."""
    calls = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(function(*args, **kwargs))
        if len(calls) > after:
            raise RuntimeError("late")
        return calls[-1]

    return failing
