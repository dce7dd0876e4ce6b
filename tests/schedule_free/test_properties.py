"""Properties that hold for whatever is done, in whatever order (hypothesis)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten, tree_map, tree_map_with_path, tree_unflatten

from mufree import AdamWScheduleFree, RAdamScheduleFree, Refused, SGDScheduleFree

FLOAT64 = 1e-11  # some dozen float64 operations on values up to about 10, x from y divided by β1 ≥ 0.5
CLASSES = st.sampled_from([AdamWScheduleFree, SGDScheduleFree, RAdamScheduleFree])
SHAPES = st.tuples(st.integers(1, 3))


def trees(leaves):
    """Dicts and lists of leaves, with names that our own state uses further down, too."""
    names = st.sampled_from(["a", "b", "weight", "z", "v", "layers"])
    inner = st.recursive(
        leaves,
        lambda child: st.one_of(
            st.lists(child, min_size=1, max_size=3),
            st.dictionaries(names, child, min_size=1, max_size=3),
        ),
        max_leaves=5,
    )
    return st.dictionaries(names, inner, min_size=1, max_size=3)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.integers(0, 2**31), st.floats(0.0, 0.6)),
        st.tuples(st.sampled_from(["eval", "train", "train", "average", "reload", "convert"])),
        st.tuples(st.just("rate"), st.floats(0.0, 0.1)),
    ),
    min_size=1,
    max_size=14,
)


class Run:
    """An optimizer, what its model holds, and the history that the properties speak of."""

    def __init__(self, cls, shapes, beta1, holds) -> None:
        beta = {"momentum": beta1} if cls is SGDScheduleFree else {"betas": (beta1, 0.99)}
        self.make = lambda holds: cls(learning_rate=0.05, weight_decay=0.1, r=0.5, model_holds=holds, **beta)
        self.optimizer, self.beta1 = self.make(holds), beta1
        generator = np.random.default_rng(0)
        self.model = tree_map(lambda leaf: mx.array(generator.normal(size=leaf.shape), mx.float64), shapes)
        self.optimizer.init(self.model)
        self.away = False
        self.mean = dict(tree_flatten(self.sequence("x")))

    def sequence(self, name):
        """x, y or z as a tree."""
        z = {path.removesuffix(".z"): a for path, a in tree_flatten(self.optimizer.state) if path.endswith(".z")}
        z = tree_map_with_path(lambda path, _: z[path], self.model)
        if name == "z":
            return z
        x = self.optimizer.average(self.model)
        if name == "x":
            return x
        if self.optimizer.model_holds == "y":
            return self.model
        return tree_map(lambda a, b: self.beta1 * a + (1 - self.beta1) * b, x, z)

    def update(self, seed, frozen) -> None:
        """One update, in which each leaf may be without a gradient; refused while the model holds x for y."""
        if self.away:
            before = bits([self.model, self.optimizer.state])
            with pytest.raises(Refused):
                self.optimizer.apply_gradients(self.model, self.model)
            assert bits([self.model, self.optimizer.state]) == before
            return
        generator = np.random.default_rng(seed)
        y = self.sequence("y")
        gradients = tree_map(lambda w: w + generator.normal(size=w.shape).item(0) if w.size else w, y)
        gradients = tree_map(lambda g: None if generator.random() < frozen else g, gradients)
        present = {path for path, g in tree_flatten(gradients) if g is not None}
        self.model = self.optimizer.apply_gradients(gradients, self.model)
        c = self.optimizer.state["schedule_free"]["c"].item()
        for path, z in tree_flatten(self.sequence("z")):
            if path in present:
                self.mean[path] = (1 - c) * self.mean[path] + c * z

    def eval(self) -> None:
        self.optimizer.eval(self.model)
        self.away = self.optimizer.model_holds == "y"

    def train(self) -> None:
        self.optimizer.train(self.model)
        self.away = False

    def average(self) -> None:
        """Twice the same; inside the block the model holds it, and afterwards what it held."""
        x, before = bits(self.optimizer.average(self.model)), bits(self.model)
        with self.optimizer.averaged(self.model):
            assert bits(self.model) == x
        assert bits(self.model) == before

    def reload(self) -> None:
        """Through a flat dict of arrays, as a file is, into a new optimizer; both go on the same, bit for bit."""
        saved = {path: mx.array(a) for path, a in tree_flatten(self.optimizer.state)}
        if self.away:
            with pytest.raises(Refused):
                self.optimizer.state = tree_unflatten(saved)
            return
        other = self.make(self.optimizer.model_holds)
        other.state = tree_unflatten(saved)
        gradients = self.sequence("y")
        there = other.apply_gradients(gradients, self.model)
        self.optimizer.state = tree_unflatten(saved)
        here = self.optimizer.apply_gradients(gradients, self.model)
        assert bits(here) == bits(there)
        assert bits(other.state) == bits(self.optimizer.state)
        self.optimizer.state = tree_unflatten(saved)

    def convert(self) -> None:
        if not self.away:
            self.optimizer.convert(self.model, "x" if self.optimizer.model_holds == "y" else "y")

    def rate(self, value) -> None:
        self.optimizer.learning_rate = value

    def check(self) -> None:
        x, y, z = (dict(tree_flatten(self.sequence(name))) for name in "xyz")
        for path in x:
            assert close(x[path], self.mean[path]), path
            if self.away:
                assert x[path] is y[path]
                continue
            assert close(y[path], self.beta1 * x[path] + (1 - self.beta1) * z[path]), path


def bits(tree):
    return [(path, np.array(a).tobytes()) for path, a in tree_flatten(tree)]


def close(a, b) -> bool:
    return bool(np.allclose(np.array(a), np.array(b), rtol=FLOAT64, atol=FLOAT64))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    CLASSES, trees(SHAPES.map(lambda shape: np.zeros(shape))), st.floats(0.5, 1.0), st.sampled_from("yx"), OPERATIONS
)
def test_whatever_is_done(cls, shapes, beta1, holds, operations) -> None:
    """y = β1·x + (1−β1)·z, x is the c-weighted mean of the past z, and what is saved and loaded goes on the same."""
    run = Run(cls, shapes, beta1, holds)
    run.check()
    for name, *arguments in operations:
        getattr(run, name)(*arguments)
        run.check()
