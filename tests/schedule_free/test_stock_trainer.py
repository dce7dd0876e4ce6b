"""model_holds="x" in trainers that somebody else wrote: mlx-lm's own, a plain loop, checkpointed layers."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree

trainer = pytest.importorskip("mlx_lm.tuner.trainer")

FORMS = 1e-5  # the same float32 trajectory through two orders of operations, 100 updates


def language_model(*, lora: bool):
    from mlx_lm.models import llama
    from mlx_lm.tuner.utils import linear_to_lora_layers

    mx.random.seed(7)
    config = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    config |= {"num_attention_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 48, "tie_word_embeddings": False}
    model = llama.Model(llama.ModelArgs.from_dict(config))
    if lora:
        model.freeze()
        linear_to_lora_layers(model, 2, {"rank": 4, "scale": 10.0, "dropout": 0.1})
    mx.eval(model.parameters())
    return model


def sentences(seed: int) -> list[tuple[list[int], int]]:
    generator = np.random.default_rng(seed)
    return [(list(map(int, (start + 3 * np.arange(20)) % 48)), 0) for start in generator.integers(0, 48, size=16)]


class Evaluations:
    """Validation losses as the trainer reports them, or, for a model at y, measured at the average then."""

    def __init__(self, model, optimizer) -> None:
        self.model, self.optimizer, self.losses = model, optimizer, []

    def on_val_loss_report(self, report) -> None:
        if self.optimizer.model_holds == "x":
            self.losses.append(report["val_loss"])
            return
        drawn = np.random.get_state()
        with self.optimizer.averaged(self.model):
            self.losses.append(trainer.evaluate(self.model, sentences(1), 4, -1, 32))
        self.model.train()  # as the trainer did before it called
        np.random.set_state(drawn)

    def on_train_loss_report(self, report) -> None:
        pass


def finetune(holds: str, *, lora: bool, checkpointing: bool, folder: Path):
    """100 updates of two micro-batches each in mlx-lm's trainer."""
    model = language_model(lora=lora)
    optimizer = AdamWScheduleFree(learning_rate=3e-3, warmup_steps=10, model_holds=holds)
    loss = optimizer.at_y(trainer.default_loss) if holds == "x" else trainer.default_loss
    evaluations = Evaluations(model, optimizer)
    mx.random.seed(1)
    np.random.seed(1)
    args = trainer.TrainingArgs(
        batch_size=4, iters=200, val_batches=-1, steps_per_report=100, steps_per_eval=50, steps_per_save=200,
        max_seq_length=32, adapter_file=str(folder / f"{holds}.safetensors"), grad_checkpoint=checkpointing,
        grad_accumulation_steps=2,
    )  # fmt: skip
    trainer.train(model, optimizer, sentences(0), sentences(1), args, loss=loss, training_callback=evaluations)
    assert optimizer.step.item() == 100
    return model, optimizer, evaluations.losses


@pytest.mark.slow
@pytest.mark.parametrize(("lora", "checkpointing"), [(True, False), (False, True)])
def test_mlx_lm_trains_unchanged(lora, checkpointing, tmp_path, monkeypatch) -> None:
    """Validation losses and the saved file are at x; x is the average that the other form has."""
    from mlx_lm.models import llama

    monkeypatch.setattr(llama.TransformerBlock, "__call__", llama.TransformerBlock.__call__)
    model, _, at_x = finetune("x", lora=lora, checkpointing=checkpointing, folder=tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(llama.TransformerBlock, "__call__", llama.TransformerBlock.__call__)
    other, optimizer, averaged = finetune("y", lora=lora, checkpointing=checkpointing, folder=tmp_path)
    x = dict(tree_flatten(model.trainable_parameters()))
    average = dict(tree_flatten(optimizer.average(other.trainable_parameters())))
    assert max(np.abs(np.array(x[path]) - np.array(average[path])).max() for path in average) < FORMS
    assert np.allclose(at_x, averaged, atol=1e-4)
    saved = mx.load(str(tmp_path / "x.safetensors"))
    assert set(saved) == set(x)
    assert all(mx.array_equal(saved[path], x[path]).item() for path in x)
    y = dict(tree_flatten(other.trainable_parameters()))
    assert max(np.abs(np.array(x[path]) - np.array(y[path])).max() for path in y) > 100 * FORMS
    assert at_x[-1] < at_x[0]


class Deep(nn.Module):
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.layers = [nn.Linear(6, 6) for _ in range(3)]
        self.checkpointed = checkpointed

    def __call__(self, x):
        for layer in self.layers:
            x = mx.tanh((nn.utils.checkpoint(layer) if self.checkpointed else layer)(x))
        return x


@pytest.mark.parametrize("compiled", [False, True])
def test_checkpointed_layers_take_their_gradient_at_y(compiled) -> None:
    """The same weights with and without recomputation, which must see y again."""
    finals = []
    for checkpointed in (False, True):
        mx.random.seed(2)
        model = Deep(checkpointed)
        optimizer = AdamWScheduleFree(learning_rate=0.01, model_holds="x")
        optimizer.init(model.trainable_parameters())
        gradient = nn.value_and_grad(model, optimizer.at_y(lambda model, x: ((model(x) - x) ** 2).mean()))
        state = [model.state, optimizer.state]

        def step(x, model=model, optimizer=optimizer, gradient=gradient):
            optimizer.update(model, gradient(model, x)[1])

        step = mx.compile(step, inputs=state, outputs=state) if compiled else step
        for k in range(20):
            step(mx.random.normal((8, 6), key=mx.random.key(k)))
            mx.eval(state)
        finals.append({path: np.array(a) for path, a in tree_flatten(model.parameters())})
    assert max(np.abs(finals[0][path] - finals[1][path]).max() for path in finals[0]) < 1e-6


def test_a_single_parameter() -> None:
    """One array in, one array out."""
    optimizer, params = AdamWScheduleFree(learning_rate=0.1, model_holds="x"), {"w": mx.array([2.0])}
    for _ in range(3):
        params = optimizer.apply_gradients(mx.grad(optimizer.at_y(lambda p: (p["w"] ** 2).sum()))(params), params)
    assert params["w"].item() < 2.0


def test_at_y_puts_y_in_for_the_time_of_the_call() -> None:
    """Value y, the gradient with respect to x that of y; x again afterwards; the loss as it is in eval mode."""
    model = nn.Linear(2, 1)
    optimizer = AdamWScheduleFree(learning_rate=0.1, betas=(0.75, 0.999), model_holds="x")
    optimizer.init(model.trainable_parameters())
    for _ in range(3):
        optimizer.update(model, {"weight": mx.ones((1, 2)), "bias": mx.ones((1,))})
    seen = []

    def loss(model):
        seen.append(model.weight)
        return (model.weight**3).sum()

    x, z = model.weight, optimizer.state["weight"]["z"]
    y = 0.75 * x + 0.25 * z
    _, gradient = nn.value_and_grad(model, optimizer.at_y(loss))(model)
    assert np.allclose(gradient["weight"], 3 * y**2, rtol=1e-5)
    assert np.allclose(model.weight, x, rtol=0, atol=0)
    closed = optimizer.at_y(lambda: (model.weight**3).sum(), model)
    assert closed().item() == pytest.approx((y**3).sum().item(), rel=1e-5)
    tree = optimizer.at_y(lambda params: (params["weight"] ** 3).sum())
    assert tree(dict(model.parameters())).item() == pytest.approx((y**3).sum().item(), rel=1e-5)
    model.eval()
    assert optimizer.at_y(loss)(model).item() == pytest.approx((x**3).sum().item(), rel=1e-6)
    with pytest.raises(ZeroDivisionError):
        optimizer.at_y(lambda _: 1 / 0)(model.train())
    assert np.allclose(model.weight, x, rtol=0, atol=0)


@pytest.mark.parametrize("holds", ["x", "y"])
def test_the_gradient_point_is_y_of_what_the_model_holds(holds) -> None:
    """For both forms; other leaves pass through."""
    model = nn.Linear(2, 1)
    optimizer = AdamWScheduleFree(learning_rate=0.1, betas=(0.75, 0.999), model_holds=holds)
    optimizer.init({"weight": model.weight})
    for _ in range(3):
        optimizer.update(model, {"weight": mx.ones((1, 2))})
    held = model.parameters()
    z = optimizer.state["weight"]["z"]
    y = 0.75 * held["weight"] + 0.25 * z if holds == "x" else held["weight"]
    point = optimizer.gradient_point(held)
    assert np.allclose(point["weight"], y, rtol=1e-6, atol=1e-7)  # one rounding
    assert np.abs(np.array(held["weight"] - z)).min() > 0.01
    assert point["bias"] is held["bias"]
