"""Whether a plan, a model and scales go together; every problem is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mufree.errors import Reasons
from mufree.plan import OptimizerPlan
from mufree.sizes import no_scales

from .forms import check_hidden
from .grouped import RESERVED
from .precision import check_float16


def all_leaves(model: Any, *, trainable: bool = False) -> dict[str, mx.array]:
    """The arrays of a model or tree by path."""
    if isinstance(model, nn.Module):
        model = model.trainable_parameters() if trainable else model.parameters()
    return dict(tree_flatten(model))


def trainable_leaves(reasons: Reasons, model: Any) -> dict[str, mx.array]:
    """The parameters to be trained by path, or none with the problem kept."""
    leaves = all_leaves(model, trainable=True)
    odd = [path for path, leaf in leaves.items() if not isinstance(leaf, mx.array)]
    for path in odd:
        reasons.add(
            "not_an_array", path or "model", f"{leaves[path]!r} is no array; give the model, or a tree of arrays"
        )
    if not leaves and not all_leaves(model):
        reasons.add("empty", "model", f"{type(model).__name__} has no parameter; give the model that is to be trained")
    return {} if odd else leaves


def check_scales(reasons: Reasons, plan: OptimizerPlan, scales: Mapping[str, Any]) -> None:
    """Keep what is wrong with scales for this optimizer."""
    name, family = plan.requested_optimizer, plan.family.mup
    made_for = getattr(scales, "family", None)
    if family is None:
        reasons.add(
            "no_rule",
            "scales",
            f"there is no width rule for {name}, whose step follows shape or parameter; leave them out",
        )
    elif (none := no_scales(scales)) is not None:
        reasons.add("scales", "scales", none)
    elif made_for != family:
        reasons.add(
            "family",
            "scales",
            f"made for {made_for!r}-like optimizers, but {name} needs family={family!r}; make them anew",
        )
    if plan.coupled_weight_decay and plan.weight_decay > 0 and plan.family.decay == "none":
        reasons.add(
            "no_rule",
            "coupled_weight_decay",
            f"L2 through {name} has no width rule; take adamw_torch's decoupled decay",
        )


def check_model(
    reasons: Reasons,
    plan: OptimizerPlan,
    model: Any,
    leaves: Mapping[str, mx.array],
    scales: Mapping[str, Any] | None,
) -> None:
    """Keep every parameter that this optimizer cannot train as planned."""
    embeddings: tuple[str, ...] = ()
    if isinstance(model, nn.Module):
        embeddings = tuple(f"{path}." for path, part in model.named_modules() if isinstance(part, nn.Embedding))
    missing = [path for path in leaves if path not in scales] if isinstance(scales, Mapping) else []
    for path in missing:
        unused = sorted(set(scales or ()) - set(leaves))[:3]
        reasons.add("unscaled", path, f"has no scale (scales without a parameter: {unused}); make them from this model")
    for path, leaf in leaves.items():
        if plan.form == "muon":
            check_hidden(reasons, path, leaf, embedding=path.startswith(embeddings))
        if path.split(".")[0] in RESERVED:
            reasons.add("reserved", path, f"starts with a word that the state needs ({', '.join(RESERVED)}); rename it")
    check_float16(reasons, plan, leaves)
