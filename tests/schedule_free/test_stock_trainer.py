"""model_holds="x" in trainers that somebody else wrote: mlx-lm's own, a plain loop, checkpointed layers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
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


@pytest.mark.filterwarnings("ignore:the model holds x, and neither")
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


def log_likelihood(model, ids):
    """Log-probability of each row, shape (rows,)."""
    return -nn.losses.cross_entropy(model(ids[:, :-1]), ids[:, 1:]).sum(axis=-1)


def preference_loss(model, reference, chosen, rejected):
    """A direct-preference loss: how much more the model prefers ``chosen`` than its frozen reference does."""
    gain = log_likelihood(model, chosen) - log_likelihood(model, rejected)
    before = log_likelihood(reference, chosen) - log_likelihood(reference, rejected)
    return -nn.log_sigmoid(0.1 * (gain - before)).mean()


def pairs(number: int) -> tuple[mx.array, mx.array]:
    """Rows that count up, and the same counted down."""
    generator = np.random.default_rng(number)
    starts = generator.integers(0, 48, size=(4, 1))
    return mx.array((starts + 3 * np.arange(12)) % 48), mx.array((starts - 3 * np.arange(12)) % 48)


PREFERENCE_UPDATES = 12


def prefer(holds: str, given: str, *, compiled: bool):
    """A hand-written loop on the preference loss, in either form; the models are passed in either order, or neither."""
    model, reference = language_model(lora=True), language_model(lora=True)
    reference.freeze()
    optimizer = AdamWScheduleFree(learning_rate=1e-2, warmup_steps=3, model_holds=holds)
    optimizer.init(model.trainable_parameters())
    losses = {
        "passed": (preference_loss, (model, reference), None),
        "passed last": (lambda r, m, a, b: preference_loss(m, r, a, b), (reference, model), None),
        "both closed over": (lambda a, b: preference_loss(model, reference, a, b), (), model),
    }
    loss, models, told = losses[given]
    loss = optimizer.at_y(loss, told) if holds == "x" else loss
    # The gradient is with respect to the model, wherever it stands among the arguments, or outside them.
    gradient = nn.value_and_grad(model, lambda *arguments: loss(*arguments))
    state = [model.state, optimizer.state, mx.random.state]

    def step(chosen, rejected):
        value, gradients = gradient(*models, chosen, rejected)
        optimizer.update(model, gradients)
        return value

    step = mx.compile(step, inputs=state, outputs=state) if compiled else step
    mx.random.seed(5)
    model.train()
    values = []
    for number in range(PREFERENCE_UPDATES):
        values.append(step(*pairs(number)).item())
        mx.eval(state)
    return model, optimizer, reference, values


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("given", ["passed", "passed last", "both closed over"])
def test_a_custom_loss_with_a_frozen_reference(given, compiled) -> None:
    """A hand-written loop on a DPO-like loss: the same losses and the same average as the form that holds y."""
    model, _, reference, at_x = prefer("x", given, compiled=compiled)
    other, optimizer, _, at_y = prefer("y", given, compiled=compiled)
    assert np.allclose(at_x, at_y, atol=FORMS)
    x = dict(tree_flatten(model.trainable_parameters()))
    average = dict(tree_flatten(optimizer.average(other.trainable_parameters())))
    assert x
    assert max(np.abs(np.array(x[path]) - np.array(average[path])).max() for path in x) < FORMS
    y = dict(tree_flatten(other.trainable_parameters()))
    assert max(np.abs(np.array(x[path]) - np.array(y[path])).max() for path in x) > 100 * FORMS
    untouched = dict(tree_flatten(language_model(lora=True).parameters()))
    assert all(mx.array_equal(value, untouched[path]) for path, value in tree_flatten(reference.parameters()))
    assert preference_loss(model.eval(), reference.eval(), *pairs(99)).item() < 0.9 * at_x[0]


def preferred_in_mlx_lm(holds: str, folder: Path):
    """mlx-lm's own trainer, with a loss and batches of one's own: two arrays of rows a batch."""
    model, reference = language_model(lora=True), language_model(lora=True)
    reference.freeze()
    optimizer = AdamWScheduleFree(learning_rate=1e-2, warmup_steps=3, model_holds=holds)

    def loss(model, chosen, rejected):
        return preference_loss(model, reference, chosen, rejected), mx.array(chosen.size)

    def batches(dataset, loop=False, **settings):
        assert loop  # without validation it is asked for training batches alone
        yield from (pairs(number) for number in dataset)

    mx.random.seed(5)
    args = trainer.TrainingArgs(
        batch_size=4, iters=PREFERENCE_UPDATES, val_batches=0, steps_per_report=1, steps_per_save=100,
        adapter_file=str(folder / f"{holds}.safetensors"),
    )  # fmt: skip
    told = []
    trainer.train(
        model, optimizer, range(PREFERENCE_UPDATES), None, args,
        loss=optimizer.at_y(loss) if holds == "x" else loss, iterate_batches=batches,
        training_callback=SimpleNamespace(on_train_loss_report=lambda report: told.append(report["train_loss"])),
    )  # fmt: skip
    return model, optimizer, told


def test_mlx_lm_trains_on_a_custom_loss(tmp_path) -> None:
    """mlx-lm's ``train`` from Python with a DPO-like loss: it saves the average that the form with y has."""
    _, _, at_x = preferred_in_mlx_lm("x", tmp_path)
    other, optimizer, at_y = preferred_in_mlx_lm("y", tmp_path)
    assert len(at_x) == PREFERENCE_UPDATES
    assert np.allclose(at_x, at_y, atol=FORMS)
    assert at_x[-1] < 0.9 * at_x[0]
    saved = mx.load(str(tmp_path / "x.safetensors"))
    average = dict(tree_flatten(optimizer.average(other.trainable_parameters())))
    assert saved.keys() == average.keys()
    assert max(np.abs(np.array(saved[path]) - np.array(average[path])).max() for path in saved) < FORMS
    y = mx.load(str(tmp_path / "y.safetensors"))
    assert max(np.abs(np.array(saved[path]) - np.array(y[path])).max() for path in saved) > 100 * FORMS


@pytest.mark.filterwarnings("ignore:the model holds x, and neither")
def test_the_model_is_the_module_that_has_something_to_train() -> None:
    """Wherever a frozen reference stands, the model is at y and the reference as it is; all frozen, nothing moves."""
    model, reference = language_model(lora=True), language_model(lora=True)
    reference.freeze()
    optimizer = AdamWScheduleFree(learning_rate=1e-2, betas=(0.5, 0.999), model_holds="x")
    optimizer.init(model.trainable_parameters())
    for number in range(3):
        gradients = nn.value_and_grad(model, lambda m, n=number: log_likelihood(m, pairs(n)[0]).mean())(model)[1]
        optimizer.update(model, gradients)

    def factors(*models):
        return [one.layers[0].self_attn.q_proj.lora_b for one in models]

    x, frozen = factors(model, reference)
    for order in ((model, reference), (reference, model)):
        seen = dict(zip(map(id, order), optimizer.at_y(factors)(*order), strict=True))
        assert not mx.array_equal(seen[id(model)], x).item()
        assert mx.array_equal(seen[id(reference)], frozen).item()
        assert factors(model)[0] is x
    assert optimizer.at_y(factors)(reference)[0] is frozen


def test_a_trainer_that_evaluates_mid_way_sees_x() -> None:
    """Between two micro-batches of one update, as between updates, the model holds x and evaluates there."""
    model = language_model(lora=True)
    optimizer = AdamWScheduleFree(learning_rate=1e-2, model_holds="x")
    optimizer.init(model.trainable_parameters())
    loss = optimizer.at_y(lambda model, ids: -log_likelihood(model, ids).mean())
    gradient = nn.value_and_grad(model, loss)
    model.train()
    for number in range(4):
        held = dict(tree_flatten(model.trainable_parameters()))
        first = gradient(model, pairs(2 * number)[0])[1]
        assert all(mx.array_equal(held[path], value) for path, value in tree_flatten(model.trainable_parameters()))
        model.eval()
        plain = -log_likelihood(model, pairs(50)[0]).mean().item()
        assert loss(model, pairs(50)[0]).item() == plain
        model.train()
        second = gradient(model, pairs(2 * number + 1)[0])[1]
        optimizer.update(model, nn.utils.tree_map(lambda a, b: (a + b) / 2, first, second))


@pytest.mark.parametrize("holds", ["x", "y"])
@pytest.mark.filterwarnings("ignore:the model holds x, and neither")
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


def _holding_x(multi: bool, beta1: float = 0.9):
    ours = AdamWScheduleFree(learning_rate=0.1, betas=(beta1, 0.999), model_holds="x")
    return ours, optim.MultiOptimizer([ours, optim.SGD(0.1)], [lambda _, w: w.ndim == 2]) if multi else ours


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_gradients_that_were_never_taken_at_y(multi, training) -> None:
    """Warned of at the first update, once, with what to do; at_y's loss in evaluation mode is the loss as it is."""
    (ours, optimizer), model = _holding_x(multi), nn.Linear(3, 2)
    plain = lambda model: model(mx.ones((1, 3))).square().mean()  # noqa: E731
    loss = plain if training else ours.at_y(plain)
    model.train(training)
    gradient = nn.value_and_grad(model, loss)
    with pytest.warns(UserWarning, match=r"optimizer\.at_y\(loss\)") as warned:
        optimizer.update(model, gradient(model)[1])
    assert len(warned) == 1
    optimizer.update(model, gradient(model)[1])


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("way", ["at_y", "compiled", "gradient_point", "converted"])
def test_gradients_that_were_taken_at_y(multi, way) -> None:
    """No warning, which would be an error here."""
    (ours, optimizer), model = _holding_x(multi), nn.Linear(3, 2)
    plain = lambda model: model(mx.ones((1, 3))).square().mean()  # noqa: E731
    optimizer.init(model.trainable_parameters())
    if way == "converted":
        ours.convert(model, "y")
    if way == "gradient_point":
        ours.gradient_point(model.trainable_parameters())
    gradient = nn.value_and_grad(model, ours.at_y(plain) if way in ("at_y", "compiled") else plain)

    def step() -> None:
        optimizer.update(model, gradient(model)[1])

    state = [model.state, optimizer.state]
    step = mx.compile(step, inputs=state, outputs=state) if way == "compiled" else step
    step()
    step()
