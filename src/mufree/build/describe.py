"""What a built optimizer says it is, read back from the object itself and not from its plan."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

import mlx.optimizers as optim

from mufree.schedule_free.base import ScheduleFree

from .grouped import Grouped

READ = (
    "betas",
    "eps",
    "momentum",
    "weight_decay",
    "coupled_weight_decay",
    "bias_correction",
    "nesterov",
    "dampening",
    "alpha",
    "rho",
    "ns_steps",
    "relative_step",
    "scale_parameter",
)


def describe(optimizer: optim.Optimizer) -> dict[str, Any]:
    """The class, its settings, how its rate goes and whether it clips, as plain values.

    Args:
        optimizer: What :func:`~mufree.build.build_optimizer` returned, or any MLX optimizer.

    Returns:
        Names to values that JSON can hold.

    Example:
        >>> import mlx.optimizers as optim
        >>> from mufree.build import describe
        >>> describe(optim.SGD(0.5))["optimizer"], describe(optim.SGD(0.5))["learning_rate"]
        ('SGD', 0.5)
    """
    rate = "schedule" if "learning_rate" in optimizer._schedulers else optimizer.state["learning_rate"].item()
    found = {
        "optimizer": type(optimizer).__name__,
        "learning_rate": rate,
        "max_grad_norm": getattr(optimizer, "max_grad_norm", None),
        "last_update": getattr(optimizer, "last_update", None),
        **_settings(optimizer),
    }
    if isinstance(optimizer, Grouped):
        found["groups"] = [
            {
                "optimizer": type(member.optimizer).__name__,
                "rate_factor": member.rate_factor,
                "paths": sorted(member.paths),
                **_settings(member.optimizer),
            }
            for member in optimizer.members
        ]
    return found


def _settings(optimizer: optim.Optimizer) -> dict[str, Any]:
    if isinstance(optimizer, ScheduleFree):
        return _schedule_free_settings(optimizer)
    found = {name: getattr(optimizer, name) for name in READ if hasattr(optimizer, name)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def _schedule_free_settings(optimizer: ScheduleFree) -> dict[str, Any]:
    """Those of the rule, the averaging and the form, under the plan's names."""
    layout = optimizer._layout
    found = {**asdict(cast(Any, layout.rule)), **asdict(optimizer._averaging)}
    found |= found.pop("adam", {})  # RAdam's rule holds Adam's
    if "beta2" in found:
        found["betas"] = (layout.form.beta1, found.pop("beta2"))
    else:
        found["momentum"] = layout.form.beta1
    return found
