"""Plan: plain settings to an :class:`OptimizerPlan`, or a refusal with every reason. Pure Python."""

from .names import resolve_optimizer_name
from .optimizer_plan import OptimizerPlan
from .planning import plan_optimizer

__all__ = ["OptimizerPlan", "plan_optimizer", "resolve_optimizer_name"]
