"""Clipping, and the end of a plan, inside the optimizer: no training loop can forget them."""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map

from mufree.errors import refuse
from mufree.sums import total

Tree = Any
NORM_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_'s: max_norm / (norm + 1e-6)


def global_norm(gradients: Tree) -> mx.array:
    """The Euclidean norm of all gradients together, summed in float32 (float64 for float64 gradients)."""
    squares = [total(mx.square(_wide(gradient))) for _, gradient in tree_flatten(gradients)]
    return mx.sqrt(sum(squares, mx.array(0.0)))


def clipped(gradients: Tree, max_norm: float) -> Tree:
    """The gradients, scaled down together if their global norm is above ``max_norm``; each keeps its dtype."""
    factor = mx.minimum(max_norm / (global_norm(gradients) + NORM_EPS), 1.0)
    return tree_map(lambda gradient: (_wide(gradient) * factor).astype(gradient.dtype), gradients)


def _wide(gradient: mx.array) -> mx.array:
    return gradient if gradient.dtype == mx.float64 else gradient.astype(mx.float32)


def guarded(
    kind: type[optim.Optimizer], *, max_grad_norm: float | None, last_update: int | None
) -> type[optim.Optimizer]:
    """A subclass of ``kind`` that clips, and refuses updates past the last one.

    Args:
        kind: Any optimizer class.
        max_grad_norm: The global norm to clip to, or ``None``.
        last_update: The number of updates after which another one is refused, or ``None``. Inside ``mx.compile`` no
            refusal is possible: there such an update leaves every parameter as it is.

    Returns:
        ``kind`` itself if there is nothing to guard.
    """
    if max_grad_norm is None and last_update is None:
        return kind

    def ready(optimizer: optim.Optimizer, gradients: Tree) -> Tree:
        if last_update is not None:
            _refuse_past(optimizer.step, last_update)
        return gradients if max_grad_norm is None else clipped(gradients, max_grad_norm)

    def apply_gradients(self: optim.Optimizer, gradients: Tree, parameters: Tree) -> Tree:
        gradients, made = ready(self, gradients), self.step
        after = kind.apply_gradients(self, gradients, parameters)
        if last_update is None:
            return after
        return tree_map(lambda new, old: mx.where(made < last_update, new, old), after, parameters)

    def update(self: optim.Optimizer, model: Any, gradients: Tree) -> None:
        kind.update(self, model, ready(self, gradients))

    body: dict[str, Any] = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "max_grad_norm": max_grad_norm,
        "last_update": last_update,
        "apply_gradients": apply_gradients,
    }
    if kind.update is not optim.Optimizer.update:  # MLX's own update calls apply_gradients: clipping there is enough
        body["update"] = update
    return cast("type[optim.Optimizer]", type(kind.__name__, (kind,), body))


def _refuse_past(step: mx.array, last: int) -> None:
    try:
        made = int(step.item())  # type: ignore[arg-type]  # a uint64 scalar, or float64 in tests
    except ValueError:  # inside a transformation the step has no value
        return
    if made >= last:
        refuse(
            "past_end", "step", f"{made} updates were planned and made; plan for more total_updates, or past_end='hold'"
        )
