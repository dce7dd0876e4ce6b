"""The schedule-free AdamW beside MLX's AdamW, PyTorch's, and the memory traffic that no update can avoid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree
from training_sides import TORCH_DEVICES, torch_missing

from .harness import Options, Row, paired, use_device

DESCRIPTION = "time and memory of updates"
MIB = 2**20
Arrays = dict[str, mx.array]


def matrices(millions: float, count: int = 4) -> Arrays:
    """``count`` square matrices with ``millions`` × 2^20 parameters together."""
    side = math.isqrt(int(millions * MIB / count))
    return random_arrays({f"w{i}": (side, side) for i in range(count)})


def vectors(count: int = 300, size: int = 1024) -> Arrays:
    """Many small parameters."""
    return random_arrays({f"w{i}": (size,) for i in range(count)})


def random_arrays(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    arrays = {name: mx.random.normal(shape) for name, shape in shapes.items()}
    mx.eval(arrays)
    return arrays


def ours() -> Any:
    return AdamWScheduleFree(learning_rate=1e-3, weight_decay=0.1, warmup_steps=10)


def mlx_adamw() -> Any:
    return optim.AdamW(learning_rate=1e-3, weight_decay=0.1, bias_correction=True)


def stepper(optimizer: Any, start: Arrays, gradients: Arrays, *, compiled: bool) -> Callable[[], None]:
    """A function that makes one update and waits for it."""
    parameters = {name: mx.array(value) for name, value in start.items()}
    optimizer.init(parameters)
    state = [parameters, optimizer.state]
    mx.eval(state)

    def update(gradients: Arrays) -> None:
        parameters.update(optimizer.apply_gradients(gradients, parameters))

    if compiled:
        update = partial(mx.compile, inputs=state, outputs=state)(update)

    def in_place() -> None:
        update(gradients)
        mx.eval(state)

    def eager() -> None:
        optimizer.update(Tree(parameters), gradients)
        mx.eval(state)

    return in_place if compiled else eager


class Tree(dict):
    """A module's ``update`` on a flat tree, sharing its dict."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self.arrays = arrays

    def __setitem__(self, name: str, value: mx.array) -> None:
        super().__setitem__(name, value)
        self.arrays[name] = value

    def update(self, arrays: Arrays) -> None:
        for name, value in arrays.items():
            self[name] = value


def mover(start: Arrays) -> Callable[[], None]:
    """One compiled kernel a parameter with the update's four reads and three writes, and hardly any arithmetic."""
    arrays = [[mx.array(value) for value in start.values()] for _ in range(4)]
    mx.eval(arrays)

    @mx.compile
    def move(y: Any, g: Any, v: Any, z: Any) -> Any:
        v = [b + a for a, b in zip(g, v, strict=True)]
        z = [b + a for a, b in zip(v, z, strict=True)]
        return [b + a for a, b in zip(z, y, strict=True)], v, z

    def run() -> None:
        arrays[0], arrays[2], arrays[3] = move(*arrays)
        mx.eval(arrays)

    return run


def torch_stepper(start: Arrays, name: str, device: str) -> Callable[[], None] | None:
    """An update in PyTorch (on two threads), or None if it is not installed or not for this device."""
    if torch_missing(device):
        return None
    import schedulefree
    import torch

    torch.set_num_threads(2)
    where = TORCH_DEVICES[device]
    parameters = [torch.nn.Parameter(torch.randn(*value.shape, device=where)) for value in start.values()]
    gradients = [torch.randn_like(parameter) for parameter in parameters]
    if name == "schedule-free":
        optimizer = schedulefree.AdamWScheduleFree(parameters, lr=1e-3, weight_decay=0.1, warmup_steps=10, foreach=True)
        optimizer.train()
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, fused=True)

    def run() -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        if device != "cpu":
            getattr(torch, where).synchronize()

    return run


def extra_memory(make: Callable[[], Any], start: Arrays, gradients: Arrays, *, compiled: bool) -> float:
    """MB that one update needs beyond what stays."""
    step = stepper(make(), start, gradients, compiled=compiled)
    for _ in range(2):
        step()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    step()
    return (mx.get_peak_memory() - before) / 1e6


def state_arrays(start: Arrays) -> float:
    """Parameter-sized arrays in the state, a parameter."""
    optimizer = ours()
    optimizer.init(start)
    size = sum(value.size for _, value in tree_flatten(optimizer.state) if value.size > 1)
    return size / sum(value.size for value in start.values())


def switching(start: Arrays, gradients: Arrays) -> tuple[Callable[[], None], Callable[[], None]]:
    """Entering and leaving ``averaged``, and one update, of one optimizer."""
    optimizer = ours()
    model = Tree({name: mx.array(value) for name, value in start.items()})
    optimizer.init(model)

    def update() -> None:
        optimizer.update(model, gradients)
        mx.eval(model, optimizer.state)

    def switch() -> None:
        with optimizer.averaged(model):
            mx.eval(list(model.values()))

    update()
    return switch, update


def rows(options: Options) -> Iterator[Row]:
    """The comparisons, one after another."""
    use_device(options.device)
    mx.set_cache_limit(4 * 2**30)
    size = f"{options.millions} M"
    yield from _speed(options, size)
    yield from _memory(options)
    yield from _growth(options)


def _speed(options: Options, size: str) -> Iterator[Row]:
    def large(
        name: str, theirs: Callable[[Arrays, Arrays], Any], limit: float | None, compiled: bool = True
    ) -> Iterator[Row]:
        if not options.wants(name):
            return
        start, gradients = matrices(options.millions), matrices(options.millions)
        other = theirs(start, gradients)
        if other is None:
            return
        mine = stepper(ours(), start, gradients, compiled=compiled)
        a, b = paired(mine, other, options.rounds)
        yield Row(name=f"{name}, {size}", ours=a, theirs=b, limit=limit)

    def theirs(name: str) -> Callable[[Arrays, Arrays], Any]:
        return lambda start, _: torch_stepper(start, name, options.device)

    yield from large("compiled / MLX AdamW compiled", lambda s, g: stepper(mlx_adamw(), s, g, compiled=True), 0.95)
    yield from large(
        "compiled / PyTorch schedule-free", lambda s, _: torch_stepper(s, "schedule-free", options.device), 0.8
    )
    yield from large("eager / MLX AdamW eager", lambda s, g: stepper(mlx_adamw(), s, g, compiled=False), 0.65, False)
    yield from large("compiled / moving the memory", lambda s, _: mover(s), 2.4)
    yield from large("compiled / PyTorch AdamW fused", theirs("fused"), None)
    for compiled, limit in ((True, 1.1), (False, 0.25)):
        name = f"300 small parameters {'compiled' if compiled else 'eager'} / MLX AdamW"
        if options.wants(name):
            start, gradients = vectors(), vectors()
            steppers = [stepper(make(), start, gradients, compiled=compiled) for make in (ours, mlx_adamw)]
            a, b = paired(*steppers, 5 * options.rounds)
            yield Row(name=name, ours=a, theirs=b, limit=limit)
    name = "averaged enter and exit / one update"
    if options.wants(name):
        a, b = paired(*switching(matrices(options.millions), matrices(options.millions)), options.rounds)
        yield Row(name=f"{name}, {size}", ours=a, theirs=b, limit=0.4)


def _memory(options: Options) -> Iterator[Row]:
    millions = max(options.millions, 16)  # from 8 M on uncompiled updates are evaluated in groups
    if options.wants("state arrays"):
        yield Row(name="state arrays a float32 parameter / 2", ours=state_arrays(vectors()), theirs=2, unit="", limit=1)
    for compiled, limit in ((True, 1.0), (False, 1.5)):
        for count in (4, 64):
            name = f"extra memory {'compiled' if compiled else 'eager'} / MLX AdamW"
            if options.wants(name):
                start, gradients = matrices(millions, count), matrices(millions, count)
                a, b = (extra_memory(make, start, gradients, compiled=compiled) for make in (ours, mlx_adamw))
                yield Row(name=f"{name}, {millions} M, {count} matrices", ours=a, theirs=b, unit="MB", limit=limit)


def _growth(options: Options) -> Iterator[Row]:
    sizes = options.millions / 4, options.millions * 4
    name = f"growth {sizes[0]:g} M to {sizes[1]:g} M / 16"
    if options.wants(name):
        small, large = (stepper(ours(), matrices(millions), matrices(millions), compiled=True) for millions in sizes)
        a, b = paired(large, small, options.rounds)
        yield Row(name=name, ours=a / 16, theirs=b, limit=1.15)
