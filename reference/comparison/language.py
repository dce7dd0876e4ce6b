"""A small language model: ``mufree pretrain``'s default data, model and settings, beside the same in PyTorch.

Ours is the stock llama, without any multiplier. PyTorch's has microsoft/mup's readout, which divides the logits by the
width multiplier m; its head therefore starts m times as large and, as mup does not scale eps, has an eps that is 1/m of
ours. By Lemma J.1 of Tensor Programs V both train alike; the head is compared divided by m.

The rate is a quarter of pretraining's default, at which training itself amplifies rounding: after 100 updates at width
128 PyTorch's own float32 is then 9e-4 nats from its float64 in validation loss at x (MLX is 8e-4 from PyTorch), and a
bound on the distance of two float32 runs means nothing.

MLX computes exponentials in float32 whatever the dtype, so there is no float64 run on its side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import schedulefree
import torch
from mlx.utils import tree_flatten, tree_unflatten

import mup
from mu_adamw_schedule_free import MuAdamWScheduleFree as TorchPair
from mufree import AdamWScheduleFree, MuAdamW, MuAdamWScheduleFree, Scales, mup_scales
from mufree.lm import at_width, base_shapes, build
from mufree.training.config import PretrainConfig
from mufree.training.loop import Trainer
from mufree.training.prepare import prepare
from torch_llama import Llama, next_token_loss

from .rows import Row, Scale, Tick
from .sides import TORCH, Case, Precision, Run, Sequences, Side, mlx_sequences, torch_sequences
from .sides import rows as case_rows

LOSS = 1e-4
"""Bound of the difference between the two float32 runs' losses, in nats."""
RATE = 2.0**-8
"""At the base width."""
HEAD = "lm_head.weight"
VALIDATION = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What both sides train.

    Args:
        config: The settings of the run.
        model_config: The model's config.
        weights: Its first weights, ours.
        scales: Its μP scales, with the base's eps for every parameter as microsoft/mup has it.
        batch: Token ids (rows, positions + 1) of an update, by its number and a seed.
        valid: Validation batches.
    """

    config: PretrainConfig
    model_config: dict[str, Any]
    weights: dict[str, np.ndarray]
    scales: Scales
    batch: Callable[[int, int], np.ndarray]
    valid: list[np.ndarray]

    @property
    def m(self) -> float:
        """The width multiplier."""
        return self.config.width / self.config.base_width

    @property
    def settings(self) -> dict[str, Any]:
        """What both sides call alike."""
        config = self.config
        return {
            "betas": (config.beta1, config.beta2),
            "eps": config.eps,
            "weight_decay": config.weight_decay,
        }


def make_task(width: int, base_width: int) -> Task:
    """Pretraining's default run at a width."""
    config = PretrainConfig(width=width, base_width=base_width, lr=RATE)
    found = prepare(config)
    return Task(
        config=config,
        model_config=found.model_config,
        weights={path: np.array(a) for path, a in tree_flatten(found.model.parameters())},
        scales=mup_scales(found.model, base_shapes(found.model_config, base_width), scale_eps=False),
        batch=lambda number, seed: found.train.shuffled(number, config.batch_size, seed),
        valid=found.valid.evenly(VALIDATION, config.batch_size),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An optimizer's two sides.

    Args:
        name: What it is called.
        torch: From groups, the rate and the task's settings.
        mlx: From a model, its scales, the rate and the task's settings.
        mup: Whether PyTorch's model has base shapes and the readout's multiplier.
        warm: Whether it takes ``warmup_steps``.
    """

    name: str
    torch: Callable[..., Any]
    mlx: Callable[..., Any]
    mup: bool = True
    warm: bool = True


OPTIMIZERS = (
    Optimizer(
        name="AdamW schedule-free",
        torch=schedulefree.AdamWScheduleFree,
        mlx=lambda _model, _scales, **settings: AdamWScheduleFree(**settings),
        mup=False,
    ),
    Optimizer(name="μP AdamW", torch=mup.MuAdamW, mlx=partial(MuAdamW, bias_correction=True), warm=False),
    Optimizer(name="μP + AdamW schedule-free", torch=TorchPair, mlx=MuAdamWScheduleFree),
)


def rows(scale: Scale, tick: Tick) -> Iterator[Row]:
    """All cases: sequences, and the losses after the last update."""
    task = make_task(scale.width, scale.width // 2)
    one = Scale(seeds=1)
    for optimizer in OPTIMIZERS:
        kept: dict[tuple[str, str], Run] = {}
        case = Case(
            name=optimizer.name,
            torch=_keeping(kept, "PyTorch", partial(_torch_side, task, optimizer)),
            mlx=_keeping(kept, "MLX", partial(_mlx_side, task, optimizer)),
            float64=None,
            ratios={},
        )
        yield from case_rows("language model", case, one, tick, scale.language_updates)
        yield from _loss_rows(optimizer.name, kept, scale.language_updates)


def cases() -> int:
    """How many ticks :func:`rows` makes."""
    return 2 * len(OPTIMIZERS)


def _keeping(kept: dict[tuple[str, str], Run], whose: str, side: Side) -> Side:
    def run(precision: Precision, seed: int, marks: Sequence[int]) -> Run:
        kept[whose, precision] = side(precision, seed, marks)
        return kept[whose, precision]

    return run


def _loss_rows(name: str, kept: dict[tuple[str, str], Run], updates: int) -> Iterator[Row]:
    exact, theirs, ours = kept["PyTorch", "float64"], kept["PyTorch", "float32"], kept["MLX", "float32"]
    row = partial(Row, problem="language model", case=name, precision="float32", updates=updates)
    for what, loss in ours.final.items():
        yield row(
            what=f"validation loss at {what}",
            ours=abs(loss - theirs.final[what]),
            theirs=abs(theirs.final[what] - exact.final[what]),
            limit=LOSS,
        )
    curves = {
        "MLX": _differences(ours.losses, theirs.losses),
        "PyTorch": _differences(theirs.losses, exact.losses),
    }
    last = max(curves["MLX"])
    yield row(what="training loss", ours=curves["MLX"][last], theirs=curves["PyTorch"][last], limit=LOSS, curves=curves)


def _differences(one: Sequence[float], other: Sequence[float]) -> dict[int, float]:
    return {k: abs(a - b) for k, (a, b) in enumerate(zip(one, other, strict=True), 1)}


def torch_model(task: Task, *, with_mup: bool, dtype: torch.dtype = torch.float32) -> Llama:
    """PyTorch's model with the task's weights."""
    model = Llama(task.model_config, readout=with_mup)
    weights = {path: torch.tensor(a) for path, a in task.weights.items()}
    if with_mup:
        base, delta = (
            Llama(at_width(task.model_config, width), readout=True)
            for width in (task.config.base_width, 2 * task.config.base_width)
        )
        mup.set_base_shapes(model, base, delta=delta, rescale_params=False)
        weights[HEAD] = weights[HEAD] * task.m
    model.load_state_dict(weights)
    return model.to(dtype)


def _torch_side(task: Task, optimizer: Optimizer, precision: Precision, seed: int, marks: Sequence[int]) -> Run:
    model = torch_model(task, with_mup=optimizer.mup, dtype=TORCH[precision])
    named = dict(model.named_parameters())
    groups = [{"params": [p for path, p in named.items() if path != HEAD]}, {"params": [named[HEAD]]}]
    if optimizer.mup:
        groups[1]["eps"] = task.config.eps / task.m
    made = optimizer.torch(groups, lr=task.config.lr, **task.settings, **_warmup(task, optimizer))
    free = hasattr(made, "train")
    if free:
        made.train()
    found = Run()
    for k in range(max(marks)):
        made.zero_grad()
        loss = next_token_loss(model, torch.tensor(task.batch(k, seed)).long())
        loss.backward()
        made.step()
        found.losses.append(loss.item())
        if k + 1 in marks:
            found.at[k + 1] = _head_as_ours(torch_sequences(made, named), task.m if optimizer.mup else 1.0)
    found.final["y" if free else "w"] = _torch_validation(task, model)
    if free:
        made.eval()
        found.final["x"] = _torch_validation(task, model)
    return found


def _torch_validation(task: Task, model: Llama) -> float:
    with torch.no_grad():
        losses = [next_token_loss(model, torch.tensor(batch).long()).item() * len(batch) for batch in task.valid]
    return sum(losses) / sum(map(len, task.valid))


def _head_as_ours(found: Sequences, m: float) -> Sequences:
    return {what: {path: a / m if path == HEAD else a for path, a in arrays.items()} for what, arrays in found.items()}


def _mlx_side(task: Task, optimizer: Optimizer, _: Precision, seed: int, marks: Sequence[int]) -> Run:
    model = build(task.model_config)
    model.update(tree_unflatten([(path, mx.array(a)) for path, a in task.weights.items()]))
    made = optimizer.mlx(model, task.scales, learning_rate=task.config.lr, **task.settings, **_warmup(task, optimizer))
    trainer = Trainer(model, made, lambda number: task.batch(number, seed))
    found = Run()
    for k in range(max(marks)):
        found.losses.append(trainer.advance())
        if k + 1 in marks:
            found.at[k + 1] = mlx_sequences(made, model)
    free = hasattr(made, "average")
    found.final["y" if free else "w"] = trainer.evaluate(task.valid, at="y")
    if free:
        found.final["x"] = trainer.evaluate(task.valid)
    return found


def _warmup(task: Task, optimizer: Optimizer) -> dict[str, int]:
    return {"warmup_steps": task.config.warmup} if optimizer.warm else {}
