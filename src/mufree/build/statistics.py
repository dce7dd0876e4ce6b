"""Running statistics, which follow the weights that gradients are taken at and not their average."""

from __future__ import annotations

from typing import Any

import mlx.nn as nn

from mufree.plan import OptimizerPlan


def running_statistics_note(plan: OptimizerPlan, model: Any) -> str | None:
    """What a schedule-free run with BatchNorm has to do before its average is used, if there is any."""
    if not plan.family.schedule_free or not isinstance(model, nn.Module):
        return None
    paths = [path for path, module in model.named_modules() if isinstance(module, nn.BatchNorm)]
    paths = sorted(path for path in paths if path)
    if not paths and not isinstance(model, nn.BatchNorm):
        return None
    return (
        f"{len(paths) or 1} BatchNorm layers ({', '.join(paths[:3])}{', …' if len(paths) > 3 else ''}) keep running "
        "statistics of y; call mufree.recalibrate(model, optimizer, batches) before x is evaluated or exported"
    )
