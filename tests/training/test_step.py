"""One update: micro-batches of any size, their weights, the gradient's norm, and what is held while it is computed."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map

from mufree import AdamWScheduleFree, NonFiniteLoss, build_optimizer, plan_optimizer
from mufree.training import step as step_module
from mufree.training.loop import Trainer
from mufree.training.step import next_token_loss
from training_models import Embedded

# float32 sums of a dozen terms in another order.
SAME = 1e-6


def rows(*sizes: int) -> list[np.ndarray]:
    """A batch of each size."""
    random = np.random.default_rng(3)
    return [random.integers(0, 7, (size, 6)).astype(np.int32) for size in sizes]


def trainer(batches: list[Any], optimizer: Any = None, dropout: float = 0.0, **settings: Any) -> Trainer:
    mx.random.seed(1)
    made = Trainer(Embedded(dropout), optimizer or optim.SGD(0.5), lambda number: batches[number], **settings)
    mx.eval(made.model.parameters())
    return made


def weights(made: Trainer) -> dict[str, mx.array]:
    return dict(tree_flatten(made.model.parameters()))


def apart(one: Trainer, other: Trainer) -> float:
    return max(mx.abs(value - weights(other)[path]).max().item() for path, value in weights(one).items())


def test_weighted_by_tokens_unequal_micro_batches_are_one_large_batch() -> None:
    """Of 1, 2 and 4 rows; counted alike they are not, which is the control."""
    batches = rows(1, 2, 4)
    large = trainer([np.concatenate(batches)])
    loss = large.advance()
    weighted = trainer(batches, accumulation=3, accumulation_weight="tokens")
    assert weighted.advance() == pytest.approx(loss, rel=SAME)
    assert apart(weighted, large) < SAME
    assert weighted.measures()["gradient_norm"] == pytest.approx(large.measures()["gradient_norm"], rel=SAME)
    assert (weighted.position.tokens, weighted.position.offset) == (35, 35)
    alike = trainer(batches, accumulation=3)
    alike.advance()
    assert apart(alike, large) > 100 * SAME


def test_a_count_of_ones_own_weighs_too() -> None:
    """As for padded sequences: a micro-batch counts by what it is told to."""
    batches = rows(2, 2)
    counted = trainer(batches, accumulation=2, accumulation_weight="tokens", count=lambda b: int(b[0, 0]) + 1)
    counts = [int(batch[0, 0]) + 1 for batch in batches]
    assert counts[0] != counts[1]
    singles = [trainer([batch]) for batch in batches]
    losses = [single.advance() for single in singles]
    assert counted.advance() == pytest.approx(np.average(losses, weights=counts), rel=SAME)
    assert counted.position.tokens == sum(counts)
    assert counted.position.offset == 20


def test_half_precision_gradients_are_summed_in_float32() -> None:
    """Three micro-batches in bfloat16: what the optimizer gets is float32, and the weights keep their own type."""
    batches = rows(2, 2, 2)
    seen: list[Any] = []

    class Seen(optim.SGD):
        def update(self, model: Any, gradients: Any) -> None:
            seen.append(tree_map(lambda g: g.dtype, gradients))
            super().update(model, gradients)

    made = trainer(batches, Seen(0.5), accumulation=3)
    made.model.set_dtype(mx.bfloat16)
    made.advance()
    assert {dtype for _, dtype in tree_flatten(seen[0])} == {mx.float32}
    made = trainer(batches, AdamWScheduleFree(0.01), accumulation=3)
    made.model.set_dtype(mx.bfloat16)
    other = Trainer(made.model, AdamWScheduleFree(0.01), lambda number: batches[number], accumulation=3)
    other.advance()
    assert {value.dtype for value in weights(other).values()} == {mx.bfloat16}


def test_it_is_averaged_then_clipped_then_applied() -> None:
    """SGD at rate 1 moves by exactly the norm it is clipped to, along the averaged gradient; what is told is before."""
    batches = rows(2, 2, 2)
    plan = plan_optimizer(optimizer="sgd", lr=1.0, max_grad_norm=0.01)
    clipped, free = (
        trainer(batches, build_optimizer(plan), accumulation=3),
        trainer(batches, optim.SGD(1.0), accumulation=3),
    )
    before = {path: mx.array(value) for path, value in weights(free).items()}
    clipped.advance()
    free.advance()
    moves = [
        np.concatenate([np.array(before[path] - value).ravel() for path, value in weights(made).items()])
        for made in (clipped, free)
    ]
    assert np.linalg.norm(moves[0]) == pytest.approx(0.01, rel=1e-4)  # weights near 1 hold a move of 0.01 to 1e-5
    assert moves[0] @ moves[1] == pytest.approx(np.linalg.norm(moves[0]) * np.linalg.norm(moves[1]), rel=1e-4)
    assert clipped.measures()["gradient_norm"] == free.measures()["gradient_norm"]
    assert free.measures()["gradient_norm"] == pytest.approx(np.linalg.norm(moves[1]), rel=1e-4)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_smaller_batch_is_traced_anew_and_changes_nothing_else(
    accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes 3, 3, 1, 3 with dropout: as without compilation, masks and numbering too, and only one more trace."""
    batches = rows(*[3] * 2 * accumulation, 1, *[3] * 2 * accumulation)
    traced: list[tuple[int, ...]] = []

    def loss(model: Any, batch: mx.array) -> mx.array:
        traced.append(batch.shape)
        return next_token_loss(model, batch)

    results = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(mx, "compile", lambda function, **_: function)
        made = trainer(batches, AdamWScheduleFree(0.05, warmup_steps=3), 0.5, accumulation=accumulation, loss=loss)
        traced.clear()
        losses = [made.advance() for _ in range(4)]
        if compiled:
            assert sorted(set(traced)) == [(1, 6), (3, 6)]
            assert len(traced) <= 2 * (1 if accumulation == 1 else 3)
        results.append((losses, weights(made), made.optimizer.step.item(), mx.random.state[0].tolist()))
    (losses, ours, *rest), (eager, theirs, *eager_rest) = results
    assert losses == pytest.approx(eager, rel=SAME)
    assert rest == eager_rest
    assert all(mx.abs(value - theirs[path]).max().item() < 10 * SAME for path, value in ours.items())


def test_the_last_good_arrays_are_dropped_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """When arrays are evaluated nobody holds the weights of before the update: they cost no memory."""
    held: list[Any] = []
    last_good, evaluate = step_module._last_good, mx.eval

    def watched(containers: Any) -> Any:
        manager = last_good(containers)
        held.append(manager)
        return manager

    def looked(*arrays: Any) -> None:
        # A finished generator's frame is gone, and what it held with it.
        assert [manager.gen.gi_frame for manager in held] == [None] * len(held)
        evaluate(*arrays)

    monkeypatch.setattr(step_module, "_last_good", watched)
    made = trainer(rows(2, 2))
    monkeypatch.setattr(mx, "eval", looked)
    made.advance()
    assert len(held) == 1


def test_a_gradient_that_is_not_finite_is_told_with_its_update() -> None:
    """Though the loss is: the derivative of √0 times 0."""

    def loss(model: Any, batch: mx.array) -> mx.array:
        return next_token_loss(model, batch) + mx.sqrt(model.head.bias.sum() * 0.0)

    made = trainer(rows(2, 2), loss=loss)
    with pytest.raises(NonFiniteLoss, match="the gradient's norm of update 1 is nan"):
        made.advance()


def test_the_measures_are_right_and_change_nothing() -> None:
    """c, ‖x − y‖ / ‖x‖ and the gradient's norm; looked at after every update or never, the bits are the same."""
    batches, found = rows(*[2] * 5), {}
    watched, alone = (trainer(batches, AdamWScheduleFree(0.05)) for _ in range(2))
    for made in (watched, alone):
        mx.random.seed(4)
        for _ in range(5):
            made.advance()
            if made is watched:
                found = made.measures()
    ours, theirs = (tree_flatten([made.model.parameters(), made.optimizer.state]) for made in (watched, alone))
    assert [array.tolist() for _, array in ours] == [array.tolist() for _, array in theirs]
    assert found["c"] == pytest.approx(1 / 5, rel=SAME)  # equal rates: equal weights
    y = np.concatenate([np.array(value).ravel() for value in weights(watched).values()])
    average = watched.optimizer.average(watched.model.parameters())
    x = np.concatenate([np.array(value).ravel() for _, value in tree_flatten(average)])
    assert found["x_to_y"] == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(x), rel=10 * SAME)
    assert 0 < found["x_to_y"] < 1
    assert found["gradient_norm"] > 0
    assert set(trainer(batches).measures()) == {"gradient_norm"}
