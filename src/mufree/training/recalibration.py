"""BatchNorm's running statistics for the average: while training they follow ``y``, and ``x`` has others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import Reasons, refuse
from ..schedule_free import averaged


def recalibrate(model: nn.Module, optimizer: Any, batches: Iterable[Any]) -> int:
    """Measure the running statistics of every BatchNorm anew, at the average ``x``.

    Each becomes the plain mean over the batches, whatever the layer's momentum; the other layers run as in evaluation,
    so that dropout neither acts nor draws. Parameters, optimizer state, momenta and each module's mode are the same
    bits afterwards. Call it before ``x`` is evaluated, saved or exported; training goes on from the new statistics.

    Args:
        model: The model; ``model(batch)`` is called, or ``model(*batch)`` where a batch is a tuple or list of arrays.
        optimizer: The schedule-free optimizer that trains it, or an MLX ``MultiOptimizer`` that holds some.
        batches: Several batches of the model's inputs (without targets), best as many and as large as in training.

    Returns:
        The number of batches.

    Raises:
        Refused: If there is no BatchNorm with running statistics, or no batch, or the arguments are others;
            nothing has changed then.

    Example:
        >>> import mlx.core as mx, mlx.nn as nn
        >>> from mufree import AdamWScheduleFree, averaged, recalibrate
        >>> model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm(4), nn.Linear(4, 1))
        >>> optimizer = AdamWScheduleFree(learning_rate=0.1)
        >>> step = nn.value_and_grad(model, lambda model, inputs: model(inputs).square().mean())
        >>> batches = [mx.random.normal((16, 2)) for _ in range(8)]
        >>> for batch in batches:
        ...     optimizer.update(model, step(model, batch)[1])
        >>> recalibrate(model, optimizer, batches)
        8
        >>> with averaged(optimizer, model):
        ...     prediction = model.eval()(batches[0])

    References:
        Defazio et al. 2024, "The Road Less Scheduled", arXiv 2405.15682, on BatchNorm.
    """
    _check_arguments(model, optimizer, batches)
    layers = [module for _, module in _modules(model) if isinstance(module, nn.BatchNorm)]
    layers = [layer for layer in layers if layer.track_running_stats]
    if not layers:
        refuse("missing", "model", "has no BatchNorm with running statistics; there is nothing to measure")
    modes = [(module, module.training) for _, module in _modules(model)]
    momenta = [layer.momentum for layer in layers]
    before = [(layer.running_mean, layer.running_var) for layer in layers]
    count = 0
    try:
        with averaged(optimizer, model):
            model.eval()
            for layer in layers:
                layer.train()
            for batch in batches:
                count += 1
                for layer in layers:
                    layer.momentum = 1 / count
                outputs = model(*map(mx.array, batch)) if isinstance(batch, tuple | list) else model(batch)
                mx.eval(outputs, [(layer.running_mean, layer.running_var) for layer in layers])
    except BaseException:
        for layer, (mean, variance) in zip(layers, before, strict=True):
            layer.running_mean, layer.running_var = mean, variance
        raise
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for module, mode in modes:
            module.train(mode)
    if count == 0:
        refuse("empty", "batches", "has no batch; give the inputs of some training batches")
    return count


def _check_arguments(model: Any, optimizer: Any, batches: Any) -> None:
    reasons = Reasons()
    if not isinstance(model, nn.Module):
        swapped = "; it is recalibrate(model, optimizer, batches)" if isinstance(optimizer, nn.Module) else ""
        reasons.add("type", "model", f"a {type(model).__name__}, no module{swapped}; give the model that is trained")
    if hasattr(batches, "shape"):
        message = f"one array of shape {tuple(batches.shape)}; give several batches, or a list of one: [batch]"
        reasons.add("type", "batches", message)
    elif not isinstance(batches, Iterable):
        reasons.add("type", "batches", f"a {type(batches).__name__}; give several batches, such as a list")
    reasons.refuse_if_any()


def _modules(model: nn.Module) -> list[tuple[str, Any]]:
    """Every module, outer ones first, since a mode is handed on to inner ones."""
    return sorted(model.named_modules(), key=lambda entry: len(entry[0].split(".")) if entry[0] else 0)
