"""MLX's own optimizer contract, asked of each class in each form."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from mufree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree

MAKERS = {
    f"{cls.__name__}-{holds}": partial(cls, learning_rate=0.05, model_holds=holds)
    for cls in (AdamWScheduleFree, SGDScheduleFree, RAdamScheduleFree)
    for holds in ("y", "x")
}
SAME = 1e-6  # one update in another fusion


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


def ones(shape, dtype=mx.float32):
    return mx.ones(shape, dtype)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32, mx.float64])
def test_structure_and_dtype_are_kept(make, dtype) -> None:
    """Dicts, lists and tuples of arrays in and out, after 1 and 10 updates; state is in the working precision."""
    params = {"first": [ones((3, 2), dtype), ones((2,), dtype)], "second": (ones((1,), dtype), {"w": ones((), dtype)})}
    optimizer = make()
    optimizer.init(params)
    begun = {path: leaf.dtype for path, leaf in tree_flatten(optimizer.state)}
    for _ in range(10):
        params = optimizer.apply_gradients(tree_map(mx.ones_like, params), params)
        assert {path: leaf.dtype for path, leaf in tree_flatten(optimizer.state)} == begun
        assert isinstance(params["second"], tuple)
        assert all(leaf.dtype == dtype for _, leaf in tree_flatten(params))
    assert isinstance(optimizer.state["second"], tuple)
    z = optimizer.state["first"][0]["z"]
    assert (z.shape, z.dtype) == ((3, 2), mx.float64 if dtype == mx.float64 else mx.float32)
    assert all(isinstance(leaf, mx.array) for _, leaf in tree_flatten(optimizer.state))
    average = optimizer.average(params)
    assert all(leaf.dtype == dtype for _, leaf in tree_flatten(average))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_without_master_weights_the_state_is_in_half_precision(make, dtype) -> None:
    """z in the parameter's dtype, no copy of the weights; the second moment stays float32, where it does not vanish."""
    optimizer = make(master_weights=False)
    params = {"w": ones((4,), dtype)}
    for _ in range(3):
        params = optimizer.apply_gradients({"w": ones((4,), dtype)}, params)
    leaf = optimizer.state["w"]
    assert params["w"].dtype == leaf["z"].dtype == dtype
    assert set(leaf) <= {"z", "v"}
    assert "v" not in leaf or leaf["v"].dtype == mx.float32


def test_rate_zero_changes_nothing(make) -> None:
    """Not a bit."""
    optimizer, params = make(learning_rate=0.0), {"w": mx.random.normal((5,))}
    new = optimizer.apply_gradients({"w": ones((5,))}, params)
    assert new["w"].tolist() == params["w"].tolist()


def test_init_from_state() -> None:
    """MLX's own: the flattened state loses parameterless layers and comes back with shorter lists."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l1, self.drop, self.l2 = nn.Linear(10, 10), nn.Dropout(p=0.5), nn.Linear(10, 10)
            self.vals = [nn.Linear(10, 10), nn.ReLU(), nn.ReLU()]

    model, optimizer = Model(), AdamWScheduleFree(learning_rate=3e-4)
    optimizer.init(model.trainable_parameters())
    other = AdamWScheduleFree(learning_rate=3e-4)
    other.state = tree_unflatten(tree_flatten(optimizer.state))
    other.update(model, model.trainable_parameters())
    mx.eval(model.parameters(), other.state)
    assert other.step.item() == 1


@pytest.mark.filterwarnings("ignore:the model holds x, and neither")
def test_parameterless_layers(make) -> None:
    """An empty dict in the gradients is no parameter."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Dropout(0.1), nn.Linear(3, 1))
    optimizer = make()
    optimizer.update(model, model.trainable_parameters())
    mx.eval(model.parameters())
    assert optimizer.step.item() == 1


def test_empty_arrays_and_containers(make) -> None:
    """Through eager and compiled updates, averages and files."""
    tree = {"none": mx.zeros((0, 3)), "a": [], "b": {}, "c": (), "w": [{}, ones((2,)), []]}
    optimizer = make()
    params = optimizer.apply_gradients(tree, tree)
    step = mx.compile(lambda p: optimizer.apply_gradients(p, p), inputs=optimizer.state, outputs=optimizer.state)
    params = step(params)
    other = make()
    other.state = tree_unflatten([(path, mx.array(a)) for path, a in tree_flatten(optimizer.state)])
    here, there = optimizer.apply_gradients(params, params), other.apply_gradients(params, params)
    assert here["w"][1].tolist() == there["w"][1].tolist()
    average = optimizer.average(here)
    assert (average["none"].shape, average["a"], average["c"]) == ((0, 3), [], ())


@pytest.mark.parametrize("rate", [mx.array([0.1]), lambda _: mx.array([0.1])], ids=["array", "schedule"])
def test_the_rates_axis_stays_out_of_the_parameters(rate) -> None:
    """A parameter without axes keeps none."""
    optimizer = AdamWScheduleFree(rate)
    params = {"w": ones(())}
    for _ in range(2):
        params = optimizer.apply_gradients(params, params)
    assert params["w"].shape == optimizer.state["w"]["z"].shape == optimizer.scheduled_lr.shape == ()


@pytest.mark.parametrize("step", [2**24 + 1, 10**9, 2**40, 2**62])
def test_after_very_many_updates(make, step) -> None:
    """Counted exactly, and nothing overflows."""
    optimizer, params = make(), {"w": ones((3,))}
    params = optimizer.apply_gradients(params, params)
    optimizer.state["step"] = mx.array(step, mx.uint64)
    for _ in range(2):
        params = optimizer.apply_gradients(params, params)
    assert optimizer.step.item() == step + 2
    assert all(mx.isfinite(a).all().item() for _, a in tree_flatten([params, optimizer.state]))


def test_a_schedule_that_fails_changes_nothing() -> None:
    """Not even by the state of a parameter that would have joined."""

    def schedule(step):
        if step.item() == 2:
            raise KeyError
        return 0.1

    optimizer, params = AdamWScheduleFree(schedule), {"a": ones((2,)), "b": ones((2,))}
    for _ in range(2):
        optimizer.apply_gradients({"a": params["a"]}, params)
    before = [(path, a.tolist()) for path, a in tree_flatten(optimizer.state)]
    with pytest.raises(KeyError):
        optimizer.apply_gradients(params, params)
    assert [(path, a.tolist()) for path, a in tree_flatten(optimizer.state)] == before


def test_two_forms_of_x_in_a_multi_optimizer() -> None:
    """at_y of one around at_y of the other: each shifts its own parameters; the average is that of the y forms."""
    from mufree import averaged

    finals = []
    for holds in "xy":
        mx.random.seed(1)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        children = [AdamWScheduleFree(0.05, model_holds=holds), SGDScheduleFree(0.05, model_holds=holds)]
        both = optim.MultiOptimizer(children, [lambda _, w: w.ndim == 2])
        both.init(model.trainable_parameters())
        loss = lambda model, x: (model(x) ** 2).mean()  # noqa: E731
        gradient = nn.value_and_grad(model, children[0].at_y(children[1].at_y(loss)) if holds == "x" else loss)
        for k in range(10):
            both.update(model, gradient(model, mx.random.normal((4, 3), key=mx.random.key(k)))[1])
        with averaged(both, model):
            finals.append({path: np.array(a) for path, a in tree_flatten(model.parameters())})
    assert max(np.abs(finals[0][path] - finals[1][path]).max() for path in finals[0]) < 1e-5  # float32, 10 updates


def quadratic(params):
    return sum((leaf**2).sum() for _, leaf in tree_flatten(params)) / 2


@pytest.mark.parametrize("style", ["pure", "captured", "scheduled"])
def test_compiled_is_eager_in_three_styles(make, style) -> None:
    """State as argument and result, state captured, and a schedule inside."""
    settings = {"learning_rate": optim.cosine_decay(0.05, 20)} if style == "scheduled" else {}
    start = {"w": mx.random.normal((4, 3)), "b": [mx.random.normal((2,))]}
    results = []
    for compiled in (False, True):
        optimizer, params = make(**settings), start
        optimizer.init(params)

        def update(params, optimizer=optimizer):
            return optimizer.apply_gradients(mx.grad(quadratic)(params), params)

        def pure(params, state, optimizer=optimizer, update=update):
            optimizer.state = state
            return update(params), optimizer.state

        if style == "pure":
            step, state = (mx.compile(pure) if compiled else pure), optimizer.state
            for _ in range(5):
                params, state = step(params, state)
        else:
            step = mx.compile(update, inputs=optimizer.state, outputs=optimizer.state) if compiled else update
            for _ in range(5):
                params = step(params)
            state = optimizer.state
        results.append((params, state["w"]["z"], state["step"].item(), state["schedule_free"]["c"].item()))
    (eager, z, *scalars), (other, z2, *scalars2) = results
    assert scalars == scalars2
    assert scalars[0] == 5
    for (_, a), (_, b) in zip(tree_flatten([eager, z]), tree_flatten([other, z2]), strict=True):
        assert np.allclose(a, b, rtol=SAME, atol=SAME)


def test_a_state_in_another_order_loads_into_a_running_compiled_step(make) -> None:
    """A compiled step takes what it captured by position; files and other programs keep keys in any order."""

    def reordered(tree):
        # Only dicts of arrays: were arrays of other shapes or types to change places, compile would trace anew.
        if isinstance(tree, dict):
            arrays = all(isinstance(child, mx.array) for child in tree.values())
            return {key: reordered(tree[key]) for key in (reversed(tree) if arrays else tree)}
        return [reordered(child) for child in tree] if isinstance(tree, list) else tree

    optimizer, params = make(), {"a": [ones((3,))], "b": ones((3,))}
    optimizer.init(params)

    @partial(mx.compile, inputs=optimizer.state, outputs=optimizer.state)
    def step(gradients, params):
        return optimizer.apply_gradients(gradients, params)

    gradients = {"a": [ones((3,)) * 2], "b": mx.array([1.0, -1.0, 0.5])}
    params = step(gradients, params)
    saved, kept = reordered(optimizer.state), params
    for _ in range(3):
        params = step(gradients, params)
    wanted = dict(tree_flatten([params, optimizer.state]))
    optimizer.state = saved
    params = kept
    for _ in range(3):
        params = step(gradients, params)
    found = dict(tree_flatten([params, optimizer.state]))
    assert {path: array.tolist() for path, array in found.items()} == {p: a.tolist() for p, a in wanted.items()}


def test_the_learning_rate_can_be_changed_under_compile(make) -> None:
    """Set between calls, seen by the next."""
    optimizer, params = make(learning_rate=0.0), {"w": ones((3,))}
    optimizer.init(params)
    step = mx.compile(lambda g, p: optimizer.apply_gradients(g, p), inputs=optimizer.state, outputs=optimizer.state)
    for _ in range(8):
        params = step({"w": ones((3,))}, params)
    assert params["w"].tolist() == [1.0, 1.0, 1.0]
    optimizer.learning_rate = 0.1
    params = step({"w": ones((3,))}, params)
    assert params["w"][0].item() < 1.0


def test_gradients_and_parameters_are_untouched(make) -> None:
    """Gradients can be used again; z is a copy, so writing to a parameter leaves it alone."""
    optimizer, params, gradients = make(), {"w": ones((3,))}, {"w": mx.array([1.0, 2.0, 3.0])}
    optimizer.init(params)
    mx.eval(params, optimizer.state)
    np.array(params["w"], copy=False)[0] = 9  # into its memory, which z must not share
    params["w"][0] = 9
    assert optimizer.state["w"]["z"].tolist() == [1.0, 1.0, 1.0]
    optimizer.apply_gradients(gradients, params)
    assert gradients["w"].tolist() == [1.0, 2.0, 3.0]
    assert params["w"].tolist() == [9.0, 1.0, 1.0]


def test_a_multi_optimizer_trains_and_averages(make) -> None:
    """Two of ours and a stock one; each touches only what it owns."""
    from mufree import averaged

    mx.random.seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    children = [make(), AdamWScheduleFree(learning_rate=0.01), optim.SGD(0.01)]
    both = optim.MultiOptimizer(children, [lambda _, w: w.ndim == 2, lambda path, _: path.startswith("layers.1")])
    loss = lambda model, x: (model(x) ** 2).mean()  # noqa: E731
    gradient = nn.value_and_grad(model, children[0].at_y(loss) if children[0].model_holds == "x" else loss)
    state = [model.state, both.state]
    both.init(model.trainable_parameters())

    @partial(mx.compile, inputs=state, outputs=state)
    def step(x):
        both.update(model, gradient(model, x)[1])

    for k in range(8):
        step(mx.random.normal((8, 4), key=mx.random.key(k)))
    mx.eval(state)
    y = dict(tree_flatten(model.parameters()))
    with averaged(both, model):
        inside = dict(tree_flatten(model.parameters()))
    assert all(array is y[path] for path, array in tree_flatten(model.parameters()))
    changed = {path for path in y if inside[path] is not y[path]}
    norm = {"layers.1.weight", "layers.1.bias"}
    assert changed == norm | ({"layers.0.weight", "layers.2.weight"} if children[0].model_holds == "y" else set())
    want = children[1].average({"layers": [{}, {"weight": y["layers.1.weight"]}]})["layers"][1]["weight"]
    assert inside["layers.1.weight"].tolist() == want.tolist()


def test_updates_of_a_multi_optimizer_at_x_are_undone() -> None:
    """In every child, the stock one too."""
    from mufree import Refused, averaged

    model = nn.Linear(3, 2)
    both = optim.MultiOptimizer([AdamWScheduleFree(), optim.SGD(0.1, momentum=0.9)], [lambda _, w: w.ndim == 2])
    both.init(model.trainable_parameters())
    state = [model.state, both.state]
    step = mx.compile(lambda: both.update(model, model.trainable_parameters()), inputs=state, outputs=state)
    step()
    before = [(path, a.tolist()) for path, a in tree_flatten([model.parameters(), both.state])]
    with pytest.raises(Refused, match="1 update ran"), averaged(both, model):
        step()
    assert [(path, a.tolist()) for path, a in tree_flatten([model.parameters(), both.state])] == before
