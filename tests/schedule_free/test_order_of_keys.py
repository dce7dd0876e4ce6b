"""A state's keys come back from a file in any order; a compiled step that captured them must not notice.

MLX traces anew when a captured array's shape or dtype differs from the one at its place in the order, so what
threatens is an order that swaps arrays which look alike: the scalars, and the arrays of one parameter.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree
from mufree.schedule_free.averaging import RESERVED


def reordered(state: dict[str, Any], which: str) -> dict[str, Any]:
    """The same state with the keys of its scalars, of one parameter's arrays, or of like parameters reversed."""
    if which == "scalars":
        return {**state, RESERVED: dict(reversed(state[RESERVED].items()))}
    if which == "arrays":
        return {**state, "w": dict(reversed(state["w"].items()))}
    return {**state, "layers": dict(reversed(state["layers"].items()))}


@pytest.mark.parametrize("which", ["scalars", "arrays", "parameters"])
@pytest.mark.parametrize("cls", [AdamWScheduleFree, SGDScheduleFree, RAdamScheduleFree])
def test_a_traced_step_goes_on_from_a_state_in_another_order(cls: Any, which: str) -> None:
    """Six updates, with the state put back in another order after three: as six without."""

    def run(reload: bool) -> list[dict[str, Any]]:
        held: Any = {"layers": {"a": mx.array([1.0, 2.0]), "b": mx.array([3.0, -4.0])}, "w": mx.array([0.5])}
        optimizer = cls(0.1, weight_decay=0.1, r=0.5)
        optimizer.init(held)
        step = mx.compile(
            lambda tree: optimizer.apply_gradients(tree, tree), inputs=optimizer.state, outputs=optimizer.state
        )
        for update in range(6):
            if reload and update == 3:
                optimizer.state = reordered(optimizer.state, which)
            held = step(held)
        return [{path: array.tolist() for path, array in tree_flatten(tree)} for tree in (held, optimizer.state)]

    assert run(reload=True) == run(reload=False)
