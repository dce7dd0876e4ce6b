"""What a plan says about itself: notes on what names mean, warnings on what looks like a mistake."""

from __future__ import annotations

from dataclasses import replace

from . import mlx_lm
from .names import BUILT
from .optimizer_plan import OptimizerPlan

_FLAT = ("constant", "constant_with_warmup")
MLX_CORRECTED = ("adamw", "adamw_anyprecision", "adam")  # the forms whose bias correction is MLX's own
# After 200 updates at β2 = 0.9999, float32 against float64 on CPU; both grow with 1/(1 − β2).
BETA2_ERROR = 1.4e-5  # of the largest weight
BETA2_MOVEMENT = 8.3e-5  # of the distance travelled


def cautions(plan: OptimizerPlan, *, asked_for_warmup: bool) -> OptimizerPlan:
    """The plan with its notes and warnings."""
    built = BUILT[plan.requested_optimizer]
    notes = [f"{plan.requested_optimizer}: {built.note}"] if built.note else []
    warnings = (
        [f"{plan.requested_optimizer} is built as {plan.optimizer_name}: {built.warning}"] if built.warning else []
    )
    warnings += _warmup_warnings(plan, asked_for_warmup=asked_for_warmup)
    warnings += _end_warnings(plan)
    warnings += _precision_warnings(plan)
    return replace(plan, notes=tuple(notes), warnings=tuple(warnings))


def _warmup_warnings(plan: OptimizerPlan, *, asked_for_warmup: bool) -> list[str]:
    found: list[str] = []
    warmup, total = plan.warmup_updates, plan.total_updates
    if asked_for_warmup and warmup == 0:
        found.append(f"the warmup rounds to no update at all out of {total}")
    if plan.family.schedule_free:
        if warmup and plan.scheduler == "constant_with_warmup":
            found.append(
                f"constant_with_warmup becomes the optimizer's own warmup of {warmup} updates, starting at lr/{warmup}"
            )
        if total is not None and warmup >= total > 1:
            found.append(f"the rate never leaves warmup: {warmup} of {total} updates")
        return found
    if plan.scheduler == mlx_lm.NAME:
        if warmup:
            found.append(
                f"as in mlx-lm, the schedule joins its warmup one update late, at {warmup + 1}: updates {warmup} and "
                f"{warmup + 1} (counted from 0) both have the peak"
            )
        return found
    if plan.scheduler == "constant" and warmup:
        found.append(f"constant with a warmup of {warmup} updates is built; transformers would drop the warmup")
    if warmup == 1 and plan.rate(0) == 0:
        found.append("the warmup is one update, whose rate is 0: it trains nothing")
    if total is not None and warmup >= total:
        found.append(
            f"the rate never leaves warmup: {warmup} of {total} updates, its highest is {plan.rate(total - 1):g}"
        )
    return found


def _end_warnings(plan: OptimizerPlan) -> list[str]:
    found: list[str] = []
    if plan.leftover_micro_batches:
        found.append(
            f"{plan.leftover_micro_batches} of {plan.iters} micro-batches are left over: {plan.grad_accumulation_steps}"
            f" make an update, and {plan.total_updates} updates are made"
        )
    options = plan.scheduler_kwargs
    if plan.scheduler == "warmup_stable_decay" and plan.total_updates is not None:
        stable = options.get("num_stable_steps")
        used = plan.warmup_updates + options["num_decay_steps"] + (stable or 0)
        if used > plan.total_updates:
            found.append(
                f"warmup, stable and decay are {used} updates of {plan.total_updates}: the rate jumps or is cut off"
            )
        elif stable is not None and used < plan.total_updates:
            found.append(
                f"warmup, stable and decay are {used} updates of {plan.total_updates}: the rest run at the minimum"
            )
    return found


def _precision_warnings(plan: OptimizerPlan) -> list[str]:
    found = ["the rate is 0: nothing will be trained"] if plan.peak_lr == 0 else []
    if plan.eps == 0 and not plan.family.schedule_free:
        found.append("eps = 0: a weight whose gradient has always been 0 becomes 0/0, not a number, as in torch")
    if plan.betas is None or plan.betas[1] <= 0.999 or plan.form not in MLX_CORRECTED or plan.coupled_weight_decay:
        return found
    times = 1e-4 / (1 - plan.betas[1])
    found.append(
        f"β2 = {plan.betas[1]:g}: MLX's float32 bias correction costs {BETA2_ERROR * times:.1e} of the weights in 200 "
        f"updates, {BETA2_MOVEMENT * times:.1e} of the distance travelled"
    )
    return found
