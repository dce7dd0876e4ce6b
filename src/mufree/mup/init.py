"""Bringing a fresh model's weights to their μP start, once and in place.

The factors are analytic. MLX's initialisers shrink with a fan of their own (``nn.Embedding`` with its width, a bias
with its layer's fan-in), so a weight is multiplied by what the rules want over what the initialiser did already; never
by anything measured. What is measured is only whether a weight still is what MLX's initialiser draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from ..errors import Reasons, refuse
from .gains import carried, is_constant
from .kinds import Placement
from .queries import Zeroing, zeroed_queries
from .rules import Decay, Family
from .scales import Scales
from .scaling import Choices, Decided, decide, match_patterns
from .shapes import NOTHING, BaseShapes
from .walk import Leaf, is_module

# Mean squares of n independent draws scatter by this over √n: 3·√(1/5 − 1/9) for the uniform law, √2 for the normal.
_SCATTER = {"uniform": 0.8944, "normal": 1.4143}
# Six such deviations: a fresh tensor fails once in 5e8, a rescaled one of 100 entries already at a factor of 1.3.
_DEVIATIONS = 6.0


def parametrize(
    model: Any,
    base_shapes: BaseShapes,
    *,
    init: str | Mapping[str, float] = "mlx",
    zero_readout: bool | str = False,
    zero_query: bool = False,
    family: Family = "adam",
    weight_decay: Decay = "independent",
    scale_eps: bool = True,
    overrides: Mapping[str, str] = NOTHING,
    multipliers: Mapping[str, float] = NOTHING,
    readout_gain: str | None = None,
    base_head_dim: int | None = None,
) -> Scales:
    """Give a fresh model its μP start, in place, and return its scales. At base width no bit changes.

    Args:
        model: A model with fresh weights.
        base_shapes: From :func:`make_base_shapes` or a ``.bsh`` file.
        init: Whose initialisation the weights have. ``"mlx"``: MLX's own, which is checked; ``{pattern: base std}``:
            those are drawn anew from N(0, (std × the rule's factor)²), the others are MLX's. A pattern with a wildcard
            draws tensors of two axes or more, so that ``*.weight`` leaves norm gains alone; ``"keep"``: the weights
            stay as they are, as for a trained model.
        zero_readout: Start an untied head at zero; a pattern says which tensors, where several map to a finite size.
        zero_query: Start the attention's queries at zero.
        family: As in :func:`mup_scales`, like the rest.
        weight_decay: See :func:`mup_scales`.
        scale_eps: See :func:`mup_scales`.
        overrides: See :func:`mup_scales`.
        multipliers: See :func:`mup_scales`.
        readout_gain: See :func:`mup_scales`.
        base_head_dim: See :func:`mup_scales`.

    Raises:
        ShapeMismatch: The model and the base shapes do not belong together.
        Refused: A kind cannot be decided, or the weights are not what ``init`` says; nothing has changed then.
    """
    if not is_module(model):
        refuse("model", "model", f"{type(model).__name__} is no MLX module; a bare tree only has scales (mup_scales)")
    choices = Choices(
        family=family,
        weight_decay=weight_decay,
        scale_eps=scale_eps,
        overrides=overrides,
        multipliers=multipliers,
        readout_gain=readout_gain,
        base_head_dim=base_head_dim,
    )
    decided = decide(model, base_shapes, choices)
    _start(model, decided, init, zero_readout, zero_query)
    return decided.scales


def _start(
    model: Any, decided: Decided, init: str | Mapping[str, float], zero_readout: bool | str, zero_query: bool
) -> None:
    """Change the weights, or none of them if anything is to be refused."""
    problems = Reasons()
    zeros = _zeroed_heads(decided, zero_readout, problems)
    if zero_query:
        zeros.update(zeroed_queries(model, decided.found, problems))
    if init == "keep":
        if zeros:
            problems.add("init", "init", "'keep' leaves the weights as they are and cannot start some at zero as well")
        problems.refuse_if_any()
        return
    stds = _given_stds(init, decided.found, problems)
    changed = _scaled(decided, stds, problems)
    problems.refuse_if_any()
    values = {leaf.path: leaf.value for leaf in decided.found}
    changed.update({path: zero(changed.get(path, values[path])) for path, zero in zeros.items()})
    if changed:
        model.update(tree_unflatten(list(changed.items())))


def _given_stds(init: object, found: tuple[Leaf, ...], problems: Reasons) -> dict[str, float]:
    if isinstance(init, Mapping):
        for pattern, std in init.items():
            if not isinstance(std, int | float) or isinstance(std, bool) or not 0 <= std < math.inf:
                problems.add("init", f"init[{pattern!r}]", f"{std!r} is no std; give a finite number ≥ 0")
        stds = match_patterns(init, found, "init", problems)
        return {leaf.path: stds[leaf.path] for leaf in found if leaf.path in init or _drawn(leaf, stds)}
    if init != "mlx":
        problems.add("init", "init", f"{init!r} is none of 'mlx', 'keep' and {{pattern: base std}}")
    return {}


def _drawn(leaf: Leaf, stds: Mapping[str, float]) -> bool:
    return leaf.path in stds and len(leaf.shape) > 1


def _scaled(decided: Decided, stds: Mapping[str, float], problems: Reasons) -> dict[str, mx.array]:
    changed = {}
    for leaf in decided.found:
        placement = decided.placements.get(leaf.path)
        if placement is None or not mx.issubdtype(leaf.value.dtype, mx.floating):
            continue
        scale = decided.scales[leaf.path]
        if leaf.path in stds and leaf.path not in decided.gains:
            std = stds[leaf.path] * scale.init
            changed[leaf.path] = mx.random.normal(leaf.value.shape, leaf.value.dtype, scale=std)
            continue
        if leaf.path in decided.gains:
            value = carried(leaf, decided.gains[leaf.path], problems)
        else:
            _check_fresh(leaf, placement, problems)
            factor = scale.init / placement.start.shrunk
            value = leaf.value if math.isclose(factor, 1.0, rel_tol=1e-12) else leaf.value * factor
            if value is not leaf.value and placement.start.law == "unknown" and not is_constant(leaf.value):
                problems.add(
                    "unknown_start",
                    leaf.path,
                    f"has to start {scale.init:.4g} times as wide as in the base model, and how its start depends "
                    f"on width is not known; give init={{{leaf.path!r}: base std}}, or init='keep' and do it yourself",
                )
        if value is not leaf.value:
            changed[leaf.path] = value
    return changed


def _check_fresh(leaf: Leaf, placement: Placement, problems: Reasons) -> None:
    start = placement.start
    if start.law not in _SCATTER or start.keeps or leaf.value.size == 0:
        return
    value = leaf.value.astype(mx.float32)
    # In two steps: MLX's CPU sums a whole array in one float32, which is 2 % off after 16 million squares.
    square = float(mx.mean(mx.mean(value * value, axis=-1)).item())  # type: ignore[arg-type]
    if square == 0:
        return
    wanted = 1 / start.fan / (3 if start.law == "uniform" else 1)
    slack = 1 + 2 * float(mx.finfo(leaf.value.dtype).eps)
    beyond = mx.sum(mx.abs(value) > slack / math.sqrt(start.fan)).item() if start.law == "uniform" else 0
    off = abs(square / wanted - 1) > _DEVIATIONS * _SCATTER[start.law] / math.sqrt(leaf.value.size)
    if beyond or off:
        law = f"U(±1/√{start.fan})" if start.law == "uniform" else f"N(0, 1/{start.fan})"
        outside = f", {beyond} of {leaf.value.size} entries lie outside" if beyond else ""
        problems.add(
            "not_fresh",
            leaf.path,
            f"is not what MLX draws, {law}: its std is {math.sqrt(square):.4g}{outside}. Parametrize a fresh model "
            "once; for another initialisation give init={pattern: base std}, for trained weights init='keep'",
        )


def _zeroed_heads(decided: Decided, wanted: bool | str, problems: Reasons) -> dict[str, Zeroing]:
    if wanted is False:
        return {}
    readout = decided.scales.readout
    if isinstance(wanted, str):
        paths = tuple(match_patterns({wanted: True}, decided.found, "zero_readout", problems))
    elif readout.way == "untied head":
        paths = readout.heads
    else:
        why = "is the embedding too and cannot start at zero" if readout.way == "tied head" else "was not found"
        where = ", ".join(readout.heads) or "zero_readout"
        problems.add("zero_readout", where, f"the head {why}; leave zero_readout off, or name the tensors by a pattern")
        return {}
    heads = {leaf.path: leaf for leaf in decided.found if leaf.path in paths}
    biases = {leaf.path: leaf for leaf in decided.found if leaf.name == "bias" and leaf.owner is not None}
    owners = {id(leaf.owner) for leaf in heads.values()}
    both = {**heads, **{path: leaf for path, leaf in biases.items() if id(leaf.owner) in owners}}
    return dict.fromkeys(both, mx.zeros_like)
