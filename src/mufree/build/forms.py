"""Update rules that MLX's arguments cannot express, as subclasses of the MLX class that the name means.

Each rule is a subclass so that whatever asks ``isinstance(optimizer, mlx.optimizers.Adamax)`` gets the true answer.
A float64 ``step`` and rate make a rule exact in float64.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_flatten

from mufree.errors import Reasons

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # the quintic's coefficients, https://kellerjordan.github.io/posts/muon/
SMALLEST_NORM = 1e-7
NOT_HIDDEN = frozenset(
    {"embed_tokens", "embedding", "embeddings", "embed", "wte", "wpe", "lm_head", "embed_out", "readout"}
)


def missing_share(beta: float, step: mx.array) -> mx.array:
    """``1 − β^t``, by which a moving average that started at 0 is too small.

    Through ``expm1``: formed as it is written it is off by 1e-5 in float32 at β = 0.999, and by more above.
    """
    if beta == 0:
        return mx.array(1.0)
    wide = step if step.dtype == mx.float64 else step.astype(mx.float32)
    return -mx.expm1(wide * math.log(beta))


class TransformersAdamW(optim.AdamW):
    """The AdamW that transformers had until version 4: eps before the bias correction, decay after the step.

    With ``s = √(1−β2^t)/(1−β1^t)``: ``w ← w − lr·s·m/(√v + eps)``, then ``w ← w·(1 − lr·λ)``.

    References:
        transformers 4.44.2, ``optimization.AdamW``.
    """

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One parameter's update."""
        beta1, beta2 = self.betas
        rate = self.learning_rate.astype(gradient.dtype)
        correction = mx.sqrt(missing_share(beta2, self.step)) / missing_share(beta1, self.step)
        step_size = (self.learning_rate * correction).astype(gradient.dtype)
        state["m"] = beta1 * state["m"] + (1 - beta1) * gradient
        state["v"] = beta2 * state["v"] + (1 - beta2) * mx.square(gradient)
        moved = parameter - step_size * state["m"] / (mx.sqrt(state["v"]) + self.eps)
        return moved - rate * self.weight_decay * moved if self.weight_decay else moved


class TorchAdamax(optim.Adamax):
    """Adamax with bias correction and eps inside the maximum, as ``torch.optim.Adamax``.

    ``u ← max(β2·u, |g| + eps)``, ``w ← w − lr/(1−β1^t)·m/u``. MLX's class has no bias correction (its first update is
    a tenth of this one's) and adds eps after the maximum.
    """

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One parameter's update."""
        beta1, beta2 = self.betas
        step_size = (self.learning_rate / missing_share(beta1, self.step)).astype(gradient.dtype)
        state["m"] = beta1 * state["m"] + (1 - beta1) * gradient
        state["v"] = mx.maximum(beta2 * state["v"], mx.abs(gradient) + self.eps)
        return parameter - step_size * state["m"] / state["v"]


class TorchMuon(optim.Muon):
    """Muon as ``torch.optim.Muon`` defines it, for two-dimensional hidden matrices only.

    Decay is decoupled, ``w ← w·(1 − lr·λ)`` (MLX adds it to the gradient, whose size orthogonalisation then forgets),
    and the momentum is divided by ``max(norm, 1e-7)`` (MLX: ``norm + 1e-7``). Newton–Schulz runs in the gradient's
    dtype, where torch's class runs it in bfloat16.

    The rate of an (out, in) matrix is ``lr·√max(1, out/in)``: it depends on the orientation, so a matrix stored
    transposed (a LoRA factor, say) trains at another rate.

    Args:
        learning_rate: The rate, or a schedule.
        momentum: μ in [0, 1).
        weight_decay: λ, multiplied by the rate without the orientation's factor.
        nesterov: Whether the momentum looks ahead.
        ns_steps: Newton–Schulz iterations.

    Raises:
        Refused: At ``init``, each leaf that is no two-dimensional hidden matrix, by path.
    """

    def init(self, parameters: Any) -> None:
        """Make the state; refuse what is no hidden matrix."""
        reasons = Reasons()
        for path, leaf in tree_flatten(parameters):
            check_hidden(reasons, path, leaf)
        reasons.refuse_if_any()
        super().init(parameters)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One parameter's update."""
        rate = self.learning_rate.astype(gradient.dtype)
        velocity = self.momentum * state["v"] + (1 - self.momentum) * gradient
        state["v"] = velocity
        update = (1 - self.momentum) * gradient + self.momentum * velocity if self.nesterov else velocity
        rows, columns = update.shape
        # not w·(1 − lr·λ): in float32 that factor is off by 3e-8, the same way at every update
        kept = parameter - rate * self.weight_decay * parameter if self.weight_decay else parameter
        return kept - rate * max(1, rows / columns) ** 0.5 * orthogonalised(update, self.ns_steps)


def orthogonalised(matrix: mx.array, iterations: int) -> mx.array:
    """Newton–Schulz towards the nearest orthogonal matrix, in the matrix's own dtype."""
    a, b, c = (mx.array(value, matrix.dtype) for value in NEWTON_SCHULZ)
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / mx.maximum(mx.sqrt(mx.square(x).sum()), SMALLEST_NORM)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if tall else x


def check_hidden(reasons: Reasons, path: str, leaf: mx.array, *, embedding: bool = False) -> None:
    """Keep the problem of a leaf that Muon is not made for."""
    what = None
    if leaf.ndim != 2:
        what = f"has shape {leaf.shape}"
    elif embedding or NOT_HIDDEN.intersection(path.lower().split(".")):
        what = "is an embedding or a readout"
    if what:
        reasons.add(
            "not_hidden",
            path,
            f"{what}; muon takes two-dimensional hidden matrices only: freeze it, or give it to another optimizer",
        )


class _Coupled:
    """Adds λ·w to the gradient before the rule sees it: torch's L2 form."""

    coupled_weight_decay = 0.0

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One parameter's update."""
        decayed = gradient + self.coupled_weight_decay * parameter
        return super().apply_single(decayed, parameter, state)  # type: ignore[misc]


class CoupledAdam(optim.Adam):
    """Adam with L2, its bias correction exact in float32."""

    coupled_weight_decay = 0.0

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One parameter's update."""
        beta1, beta2 = self.betas
        gradient = gradient + self.coupled_weight_decay * parameter
        state["m"] = beta1 * state["m"] + (1 - beta1) * gradient
        state["v"] = beta2 * state["v"] + (1 - beta2) * mx.square(gradient)
        step_size = (self.learning_rate / missing_share(beta1, self.step)).astype(gradient.dtype)
        shrink = mx.rsqrt(missing_share(beta2, self.step)).astype(gradient.dtype)
        return parameter - step_size * state["m"] / (mx.sqrt(state["v"]) * shrink + self.eps)


class CoupledAdagrad(_Coupled, optim.Adagrad):
    """Adagrad with L2."""


class CoupledAdamax(_Coupled, TorchAdamax):
    """Adamax with L2."""


class CoupledRMSprop(_Coupled, optim.RMSprop):
    """RMSprop with L2."""


class CoupledAdaDelta(_Coupled, optim.AdaDelta):
    """AdaDelta with L2."""
