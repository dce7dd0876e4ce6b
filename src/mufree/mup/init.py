"""Bringing a fresh model's weights to their μP start, once and in place.

The factors are analytic. MLX's initialisers shrink with a fan of their own (``nn.Embedding`` with its width, a bias
with its layer's fan-in), so a weight is multiplied by what the rules want over what the initialiser did already; never
by anything measured. What is measured is only whether a weight still is what MLX's initialiser draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import mlx.core as mx

from ..errors import Reasons, refuse
from ..sums import total
from .choices import Choices
from .gains import carried, is_constant
from .kinds import Placement
from .queries import Zeroing, zeroed_queries
from .readout import bottlenecks
from .scales import Scales
from .scaling import Decided, decide, match_patterns
from .shapes import BaseShapes
from .walk import Leaf, is_module

# Mean squares of n independent draws scatter by this over √n: 3·√(1/5 − 1/9) for the uniform law, √2 for the normal.
_SCATTER = {"uniform": 0.8944, "normal": 1.4143}
# Six such deviations: a fresh tensor fails once in 5e8, a rescaled one of 100 entries already at a factor of 1.3.
_DEVIATIONS = 6.0
# How unlikely it may be that no draw of a uniform law comes nearer to its bound.
_NARROW = 1e-9


def parametrize(
    model: Any,
    base_shapes: BaseShapes,
    *,
    init: str | Mapping[str, float | str] = "mlx",
    zero_readout: bool | str = False,
    zero_query: bool = False,
    **as_mup_scales: Any,
) -> Scales:
    """Give a fresh model its μP start, in place, and return its scales. At base width no bit changes.

    Args:
        model: A model with fresh weights.
        base_shapes: From :func:`make_base_shapes` or a ``.bsh`` file.
        init: Whose initialisation the weights have. ``"mlx"``: MLX's own, which is checked; ``{pattern: base std}``:
            those are drawn anew from N(0, (std × the rule's factor)²), the others are MLX's. A pattern that matches
            matrices and vectors draws the matrices, so that ``*.weight`` leaves norm gains alone; where patterns
            overlap the last one wins (unlike ``groups`` of an optimizer, where the first does); ``{pattern: "keep"}``
            leaves those as they are; ``"keep"``: all weights stay as they are, as for a trained model.
        zero_readout: Start an untied head at zero; a pattern says which tensors, where several map to a finite size.
        zero_query: Start the attention's queries at zero; of a fused projection the first part, a third where its rows
            are three times its columns: its rows have to be [queries; keys; values].
        **as_mup_scales: ``family``, ``weight_decay``, ``scale_eps``, ``overrides``, ``multipliers``, ``readout_gain``
            and ``base_head_dim``, all as :func:`mup_scales` takes them.

    Returns:
        What :func:`mup_scales` gives.

    Raises:
        ShapeMismatch: The model and the base shapes do not belong together.
        Refused: A kind cannot be decided, or the weights are not what ``init`` says; nothing has changed then.

    Example:
        >>> import mlx.nn as nn
        >>> from mufree import make_base_shapes, parametrize
        >>> make = lambda width: nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))
        >>> model = make(1024)
        >>> before = model.layers[2].weight
        >>> scales = parametrize(model, make_base_shapes(make, base_width=64))
        >>> scales["layers.2.weight"].kind, (model.layers[2].weight / before).max().item()  # 1/√m less, at m = 16
        ('output-like', 0.25)

    References:
        Yang et al. 2022, "Tensor Programs V", arXiv 2203.03466, tables 3 and 8; zero starts: appendix D.2.
    """
    if not is_module(model):
        refuse("model", "model", f"{type(model).__name__} is no MLX module; a bare tree only has scales (mup_scales)")
    choices = Choices(**as_mup_scales)
    decided = decide(model, base_shapes, choices)
    _start(model, decided, init, zero_readout, zero_query)
    return decided.scales


def _start(
    model: Any, decided: Decided, init: str | Mapping[str, float | str], zero_readout: bool | str, zero_query: bool
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
    stds = _given_stds(init, decided, problems)
    changed = _scaled(decided, stds, problems)
    problems.refuse_if_any()
    values = {leaf.path: leaf.value for leaf in decided.found}
    changed.update({path: zero(changed.get(path, values[path])) for path, zero in zeros.items()})
    for leaf in decided.found:
        if leaf.path in changed:
            _put(leaf, changed[leaf.path])


def _put(leaf: Leaf, value: mx.array) -> None:
    """Where the value came from; a path alone does not tell a list's place from a key that is a number."""
    holder, keys = leaf.owner, leaf.name.split(".")
    for n, key in enumerate(keys):
        place: Any = key if isinstance(holder, Mapping) else int(key)
        if n == len(keys) - 1:
            holder[place] = value
        else:
            holder = holder[place]


def _given_stds(init: object, decided: Decided, problems: Reasons) -> dict[str, float | None]:
    """The base std of what is drawn anew, ``None`` for what stays as it is."""
    if not isinstance(init, Mapping):
        if init != "mlx":
            problems.add("init", "init", f"{init!r} is none of 'mlx', 'keep' and {{pattern: base std}}")
        return {}
    match_patterns(init, decided.found, "init", problems)
    stds: dict[str, float | None] = {}
    taken: set[str] = set()
    for pattern, std in reversed(tuple(init.items())):
        keeps = std == "keep"
        if not keeps and (not isinstance(std, int | float) or isinstance(std, bool) or not 0 <= std < math.inf):
            problems.add("init", f"init[{pattern!r}]", f"{std!r} is no std; give a finite number ≥ 0, or 'keep'")
            keeps = True  # nothing is drawn by it: it is refused
        elif decided.gains.get(pattern, 1.0) != 1.0:
            problems.add("init", f"init[{pattern!r}]", "carries a multiplier, and starts with it; leave it out")
        mine = _drawn(pattern, decided.found, vectors=keeps)
        if mine and mine <= taken:
            problems.add(
                "no_effect",
                f"init[{pattern!r}]",
                "has no effect, since later patterns take all that it matches and the last one wins; put it after them",
            )
        stds |= dict.fromkeys(mine - taken, None if keeps else std)
        taken |= mine
    return stds


def _drawn(pattern: str, found: tuple[Leaf, ...], *, vectors: bool) -> set[str]:
    """What a pattern draws: what it names outright, else matrices, else, as with ``*.bias``, vectors."""
    ranks = {leaf.path: len(leaf.shape) for leaf in found if fnmatchcase(leaf.path, pattern)}
    only = vectors or max(ranks.values(), default=0) <= 1
    return {path for path, rank in ranks.items() if path == pattern or rank > 1 or only}


def _scaled(decided: Decided, stds: Mapping[str, float | None], problems: Reasons) -> dict[str, mx.array]:
    changed = {}
    for leaf in decided.found:
        placement = decided.placements.get(leaf.path)
        if placement is None or not mx.issubdtype(leaf.value.dtype, mx.floating):
            continue
        scale = decided.scales[leaf.path]
        if leaf.path in stds and decided.gains.get(leaf.path, 1.0) == 1.0:
            std = stds[leaf.path]
            if std is not None:
                changed[leaf.path] = mx.random.normal(leaf.value.shape, leaf.value.dtype, scale=std * scale.init)
            continue
        if leaf.path in decided.gains:
            value = carried(leaf, scale.init, problems)
        else:
            _check_fresh(leaf, placement, problems)
            factor = scale.init / placement.start.shrunk
            value = leaf.value if math.isclose(factor, 1.0, rel_tol=1e-12) else leaf.value * factor
            _check_known(leaf, placement, scale.init, value is not leaf.value, problems)
        if value is not leaf.value:
            changed[leaf.path] = value
    return changed


def _check_known(leaf: Leaf, placement: Placement, factor: float, changes: bool, problems: Reasons) -> None:
    """Whether it is known how a start depends on width: of a constant, and of layers whose initialiser is known."""
    own = bool(leaf.classes) and leaf.classes[0].split(":")[0] not in ("mlx", "mlx_lm") and not leaf.frozen
    scales = (placement.m_in, placement.m_out) != (1.0, 1.0)
    if placement.start.law != "unknown" or not (changes or (own and scales)) or is_constant(leaf.value):
        return
    wanted = "as wide as" if factor == 1 else f"{factor:.4g} times as wide as"
    vector = ""
    if len(leaf.shape) == 1 and placement.kind == "input-like":
        vector = f"; if it maps the width to one number, it is a readout: overrides={{{leaf.path!r}: 'output-like'}}"
    problems.add(
        "unknown_start",
        leaf.path,
        f"has to start {wanted} in the base model, and how its start depends on width is not known; give "
        f"init={{{leaf.path!r}: base std}}, or {{{leaf.path!r}: 'keep'}} if it starts so by itself{vector}",
    )


def _check_fresh(leaf: Leaf, placement: Placement, problems: Reasons) -> None:
    start = placement.start
    if start.law not in _SCATTER or start.keeps or leaf.value.size == 0:
        return
    value = leaf.value.astype(mx.float32)
    square = float(total(value * value).item()) / value.size  # type: ignore[arg-type]
    if square == 0:
        return
    wanted = 1 / start.fan / (3 if start.law == "uniform" else 1)
    slack = 1 + 2 * float(mx.finfo(leaf.value.dtype).eps)
    beyond = mx.sum(mx.abs(value) > slack / math.sqrt(start.fan)).item() if start.law == "uniform" else 0
    off = abs(square / wanted - 1) > _DEVIATIONS * _SCATTER[start.law] / math.sqrt(leaf.value.size)
    largest = float(mx.max(mx.abs(value)).item()) * math.sqrt(start.fan) * slack  # type: ignore[arg-type]
    narrow = start.law == "uniform" and min(largest, 1.0) ** leaf.value.size < _NARROW
    if beyond or off or narrow:
        law = f"U(±1/√{start.fan})" if start.law == "uniform" else f"N(0, 1/{start.fan})"
        outside = f", {beyond} of {leaf.value.size} entries lie outside" if beyond else ""
        problems.add(
            "not_fresh",
            leaf.path,
            f"is not what MLX draws, {law}: its std is {math.sqrt(square):.4g}{outside}. Parametrize a fresh model "
            "once; for another initialisation give init={pattern: base std}, for trained weights init='keep'",
        )


def _zeroed_heads(decided: Decided, wanted: object, problems: Reasons) -> dict[str, Zeroing]:
    if not isinstance(wanted, bool | str):
        problems.add("zero_readout", "zero_readout", f"{wanted!r}; give True, False or a path pattern")
    if wanted is False or problems.found:
        return {}
    readout = decided.scales.readout
    if isinstance(wanted, str):
        paths = tuple(match_patterns({wanted: True}, decided.found, "zero_readout", problems))
    elif readout.way == "untied head":
        paths = readout.heads
        unclear = bottlenecks(paths, decided.found, decided.placements)
        if unclear:
            problems.add(
                "zero_readout",
                ", ".join(unclear),
                "may be a bottleneck, since another layer takes up the size that it maps to, so not all of "
                f"{', '.join(paths)} need be heads; name what is to start at zero by a pattern: zero_readout='head.*'",
            )
            return {}
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
