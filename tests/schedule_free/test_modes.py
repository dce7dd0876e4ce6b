"""x and y are never confused: exact restoration, idempotent, guarded."""

from __future__ import annotations

import copy
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from test_adamw import batch, bits, flat, loss, make, network, train
from test_adamw import test_compiled_updates_while_the_model_holds_x_are_undone as undone

from mufree import Refused
from mufree.schedule_free import held


@pytest.fixture
def trained():
    model, optimizer = network(), make()
    train(model, optimizer, 10, compiled=False)
    return model, optimizer


def test_before_the_first_update_everything_is_the_start() -> None:
    """eval, eval, train, train, averaged: no-ops, whether init was called or not."""
    for initialised in (False, True):
        model, optimizer = network(), make()
        before = bits(model.parameters())
        if initialised:
            optimizer.init(model.trainable_parameters())
        optimizer.train(model)
        optimizer.eval(model)
        optimizer.eval(model)
        assert bits(model.parameters()) == before
        optimizer.train(model)
        optimizer.train(model)
        with optimizer.averaged(model), optimizer.averaged(model):
            assert bits(optimizer.average(model.parameters())) == before
        assert bits(model.parameters()) == before


def test_a_hundred_switches_change_nothing(trained) -> None:
    """Bit for bit, since nothing is computed on the way back."""
    model, optimizer = trained
    before, x = bits(model.parameters()), bits(optimizer.average(model.parameters()))
    for _ in range(100):
        optimizer.eval(model)
        assert bits(model.parameters()) == x
        optimizer.train(model)
    assert bits(model.parameters()) == before


def test_average_while_the_model_holds_x_is_x(trained) -> None:
    """Not the average of an average."""
    model, optimizer = trained
    x = bits(optimizer.average(model.parameters()))
    with optimizer.averaged(model):
        assert bits(optimizer.average(model.parameters())) == x


def test_nested_and_inside_eval(trained) -> None:
    """averaged inside eval leaves eval in force."""
    model, optimizer = trained
    y = flat(model)
    optimizer.eval(model)
    x = flat(model)
    with optimizer.averaged(model):
        pass
    assert all(a is x[path] for path, a in flat(model).items())
    optimizer.train(model)
    assert all(a is y[path] for path, a in flat(model).items())


def test_frozen_leaves_pass_through(trained) -> None:
    """Never trained: the same array. Trained and frozen later: its average."""
    model, optimizer = trained
    model.layers.append(nn.Linear(4, 4))
    average = dict(tree_flatten(optimizer.average(model.parameters())))
    assert average["layers.3.weight"] is model.layers[3].weight
    before = bits(optimizer.average(model.parameters()))
    model.freeze()
    assert bits(optimizer.average(model.parameters())) == before
    with optimizer.averaged(model):
        assert bits(model.parameters()) == before


def test_partial_trees_are_refused(trained) -> None:
    """A part of the model, or another one, would pass as if nothing of it were trained."""
    model, optimizer = trained
    with pytest.raises(Refused) as refused:
        optimizer.eval(model.layers[0])
    assert {reason.field for reason in refused.value.reasons} == set(flat(model))
    first = {"layers": [model.layers[0].parameters()]}
    for switch in (optimizer.eval, lambda tree: optimizer.averaged(tree).__enter__()):
        with pytest.raises(Refused) as refused:
            switch(first)
        assert {reason.field for reason in refused.value.reasons} == {"layers.2.weight", "layers.2.bias"}
    with pytest.raises(Refused):
        optimizer.average(model.layers[0].parameters())
    with pytest.raises(Refused, match="shape"):
        optimizer.average({"layers": [{"weight": mx.zeros((2, 2))}]})
    train(model, optimizer, 1, compiled=False)


def test_another_model_at_train(trained) -> None:
    """The y arrays belong to the model they were taken from."""
    model, optimizer = trained
    optimizer.eval(model)
    with pytest.raises(Refused, match="not the one"):
        optimizer.train(network())
    optimizer.train(model)


def test_another_model_while_one_holds_x(trained) -> None:
    """It would be evaluated at y without a word."""
    model, optimizer = trained
    other = copy.deepcopy(model)
    optimizer.eval(model)
    with pytest.raises(Refused, match="not the one"):
        optimizer.eval(other)
    with pytest.raises(Refused, match="not the one"), optimizer.averaged(other):
        pass
    optimizer.train(model)


def test_train_inside_an_averaged_block(trained) -> None:
    """Refused, in place of a block whose rest is at y; the block still ends with the very same y."""
    model, optimizer = trained
    y = flat(model)
    with optimizer.averaged(model):
        x = bits(model.parameters())
        with pytest.raises(Refused, match="leave the block"):
            optimizer.train(model)
        assert bits(model.parameters()) == x
    assert all(a is y[path] for path, a in flat(model).items())
    train(model, optimizer, 1, compiled=False)


@pytest.mark.parametrize("end", ["close", "exit"])
def test_a_block_left_early(trained, end) -> None:
    """A generator that is closed within, and an exit of the interpreter: y is back."""
    model, optimizer = trained
    y = flat(model)

    def within():
        with optimizer.averaged(model):
            yield
            raise SystemExit

    block = within()
    next(block)
    if end == "close":
        block.close()
    else:
        with pytest.raises(SystemExit):
            next(block)
    assert not optimizer.holds_average
    assert all(a is y[path] for path, a in flat(model).items())


def test_a_module_in_two_places(trained) -> None:
    """Two paths, one array: switching there and back is no replacement of weights."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.second = self.first

        def __call__(self, x):
            return self.second(mx.tanh(self.first(x)))

    model, optimizer = Twice(), make()
    gradient = nn.value_and_grad(model, lambda model: (model(batch(0)) ** 2).mean())
    for _ in range(5):
        optimizer.update(model, gradient(model)[1])
    y = model.first.weight
    z = optimizer.state["second"]["weight"]["z"]
    with optimizer.averaged(model):
        assert np.allclose(model.first.weight, (y - 0.1 * z) / 0.9, atol=1e-6)
    assert model.first.weight is y
    optimizer.eval(model)
    optimizer.train(model)
    assert model.first.weight is y


def test_trees_of_tuples() -> None:
    """A tuple cannot be written to and is replaced, at any depth, by updates, switches and conversions."""
    optimizer = make()
    tree = {"t": (mx.ones((2,)), {"w": mx.ones((1,))}, [(mx.ones((1,)),)])}
    for _ in range(3):
        optimizer.update(tree, tree_map(mx.ones_like, tree))
    assert all((a < 1).all().item() for _, a in tree_flatten(tree))
    before, x = bits(tree), bits(optimizer.average(tree))
    assert x != before
    with optimizer.averaged(tree):
        assert bits(tree) == x
    assert bits(tree) == before
    optimizer.convert(tree, "x")
    assert bits(tree) == x


@pytest.mark.parametrize("discard", [False, True])
def test_weights_loaded_in_eval_mode(trained, discard) -> None:
    """train refuses: they are not the arrays that eval put there. On request it drops them."""
    model, optimizer = trained
    y = flat(model)
    optimizer.eval(model)
    loaded = network()
    model.update(loaded.parameters())
    if not discard:
        with pytest.raises(Refused) as refused:
            optimizer.train(model)
        assert {reason.field for reason in refused.value.reasons} == set(y)
        assert bits(model.parameters()) == bits(loaded.parameters())
    optimizer.train(model, discard=True)
    assert all(a is y[path] for path, a in flat(model).items())


def test_weights_loaded_inside_averaged(trained) -> None:
    """The block ends with y, and says that they were dropped."""
    model, optimizer = trained
    y = flat(model)
    with pytest.raises(Refused, match="was replaced"), optimizer.averaged(model):
        model.update(network().parameters())
    assert all(a is y[path] for path, a in flat(model).items())


def test_loading_a_state_in_eval_mode_is_refused(trained) -> None:
    """The weights in the model are not those the state belongs to."""
    model, optimizer = trained
    optimizer.eval(model)
    with pytest.raises(Refused, match="the state was set"):
        optimizer.state = dict(optimizer.state)
    optimizer.train(model)


def test_a_conversion_in_eval_mode_is_refused(trained) -> None:
    """The model holds x only for the time being."""
    model, optimizer = trained
    optimizer.eval(model)
    before = bits(optimizer.state)
    with pytest.raises(Refused, match="a conversion was asked for"):
        optimizer.convert(model, "x")
    assert bits(optimizer.state) == before
    optimizer.train(model)


def test_a_compiled_forward_captured_before_the_switch_sees_x(trained) -> None:
    """Capturing hands back other objects of equal value: no reason to refuse."""
    model, optimizer = trained
    forward = mx.compile(lambda inputs: loss(model, inputs), inputs=model.state)
    at_y = forward(batch(99)).item()
    with optimizer.averaged(model):
        at_x = forward(batch(99)).item()
        assert at_x == pytest.approx(loss(model, batch(99)).item(), rel=1e-6)
    assert abs(at_x / at_y - 1) > 1e-4
    assert forward(batch(99)).item() == at_y


def test_averaged_inside_a_compiled_function(trained) -> None:
    """An evaluation compiled with its switch: inside a trace nothing is compared by value."""
    model, optimizer = trained

    def evaluate(inputs):
        with optimizer.averaged(model):
            return loss(model, inputs)

    compiled = mx.compile(evaluate, inputs=[model.state, optimizer.state])
    assert compiled(batch(5)).item() == pytest.approx(evaluate(batch(5)).item(), rel=1e-6)


def test_a_bad_batch_in_a_compiled_step_at_x(trained) -> None:
    """Its trace leaves dead tracers in model and state; leaving the block puts the last good arrays back."""
    model, optimizer = trained
    state = [model.state, optimizer.state]
    gradient = nn.value_and_grad(model, loss)

    @partial(mx.compile, inputs=state, outputs=state)
    def step(inputs):
        optimizer.update(model, gradient(model, inputs)[1])

    before = bits(model.parameters()), bits(optimizer.state)
    with pytest.raises(ValueError, match=r"matmul|addmm") as error, optimizer.averaged(model):
        step(mx.zeros((2, 7)))
    assert not isinstance(error.value, Refused)
    assert (bits(model.parameters()), bits(optimizer.state)) == before
    train(model, optimizer, 1, compiled=True)


def test_where_the_model_holds_x_there_are_no_modes() -> None:
    """eval, train and averaged do nothing, updates are always welcome, and average gives the weights as they are."""
    model, optimizer = network(), make(model_holds="x")
    optimizer.eval(model)
    train(model, optimizer, 3, compiled=False)
    x = flat(model)
    with optimizer.averaged(model):
        assert all(a is x[path] for path, a in flat(model).items())
    assert dict(tree_flatten(optimizer.average(model.parameters())))["layers.0.weight"] is x["layers.0.weight"]


@pytest.mark.parametrize("dtype", [mx.float64, mx.float32, mx.bfloat16])
def test_converting_in_the_middle_of_a_run(dtype) -> None:
    """y, then x, then y again, with one compiled step a form: as if it had always been y; exactly so in float64."""
    finals = []
    for converting in (False, True):
        model = network()
        model.set_dtype(dtype)
        optimizer = make()
        for k in range(3):
            if converting and k:
                optimizer.convert(model, "x" if k == 1 else "y")
            gradient = nn.value_and_grad(model, optimizer.at_y(loss) if optimizer.model_holds == "x" else loss)
            for n in range(5):
                optimizer.update(model, gradient(model, batch(10 * k + n).astype(dtype))[1])
        average = optimizer.average(model.parameters())
        finals.append({p: np.array(a.astype(mx.float64)) for p, a in tree_flatten([model.parameters(), average])})
    worst = max(np.abs(finals[0][p] - finals[1][p]).max() for p in finals[0])
    # float64: roundings of 1e-16. float32: 1e-7, divided by small roots of v. bfloat16: its own resolution at 1.
    assert worst < {mx.float64: 1e-13, mx.float32: 1e-5, mx.bfloat16: 2**-7}[dtype]
    assert set(optimizer.state["schedule_free"]) == set(make().state["schedule_free"])


def test_converting_half_precision_converts_the_float32_copies() -> None:
    """The run lives in them: x from y and z, and back, to float32 rounding; the old copy is gone."""
    optimizer, held = make(learning_rate=0.1, warmup_steps=0), {"w": mx.array([1.0, -2.0], mx.bfloat16)}
    for _ in range(3):
        held = optimizer.apply_gradients({"w": mx.array([1.0, 0.5], mx.bfloat16)}, held)
    leaf = optimizer.state["w"]
    y, z = leaf["y"], leaf["z"]
    average = optimizer.average(held)["w"].tolist()
    optimizer.convert(held, "x")
    assert set(leaf) == {"z", "v", "x"}
    assert np.allclose(leaf["x"], (y - 0.1 * z) / 0.9, rtol=3e-7)
    assert held["w"].tolist() == average
    optimizer.convert(held, "y")
    assert set(leaf) == {"z", "v", "y"}
    assert np.allclose(leaf["y"], y, rtol=3e-7)
    assert held["w"].dtype == mx.bfloat16


@pytest.mark.filterwarnings("ignore:the model holds x, and neither")
def test_a_compiled_step_is_traced_anew_after_a_conversion() -> None:
    """It captured the state, whose structure tells the form; otherwise it would go on with the old one unnoticed."""
    finals = []
    for compiled in (False, True):
        model, optimizer = network(), make()
        optimizer.init(model.trainable_parameters())
        state = [model.state, optimizer.state]

        def step(optimizer=optimizer, model=model):
            optimizer.update(model, model.trainable_parameters())

        if compiled:
            step = partial(mx.compile, inputs=state, outputs=state)(step)
        for k in range(6):
            if k == 3:
                optimizer.convert(model, "x")
            step()
        finals.append({p: np.array(a) for p, a in tree_flatten(model.parameters())})
    assert max(np.abs(finals[0][p] - finals[1][p]).max() for p in finals[0]) < 1e-6


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("updates", lambda _: 0), ("leave", lambda self: [setattr(m, "_held", None) for m in self.members] and None)],
)
def test_planted_mistakes_in_the_modes_are_caught(name, wrong, monkeypatch) -> None:
    """Not looking at step; leaving without the way back."""
    monkeypatch.setattr(held.Held, name, wrong)
    with pytest.raises((AssertionError, pytest.fail.Exception, Refused)):
        undone(verbs=False)
