"""μP and schedule-free together, in PyTorch: the reference that the MLX optimizer is compared with.

microsoft/mup knows how wide each parameter is, ``schedulefree`` how to do without a schedule. The pair needs nothing
but parameter groups: one for every width multiplier, whose rate is divided by it and whose decay is multiplied, so that
their product stays (unless ``decoupled_wd``). One averaging weight then serves all groups, because a constant factor of
the rate cancels in it.

Run as a script it trains a small network at its base width and wider, and prints the groups:

    python reference/mu_adamw_schedule_free.py --width 256
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import schedulefree
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import mup

Params = Iterable[torch.nn.Parameter] | Iterable[Mapping[str, Any]]
Groups = list[dict[str, Any]]


def width_multiplier(parameter: torch.nn.Parameter) -> float:
    """What an Adam-like rate is divided by: the growth of the fan-in where both dimensions grow, else 1.

    Args:
        parameter: One whose base shape is known (``mup.set_base_shapes``).

    Raises:
        ValueError: It has none, or more than two of its dimensions grow.
    """
    shape = getattr(parameter, "infshape", None)
    if shape is None:
        raise ValueError(f"a parameter of shape {tuple(parameter.shape)} has no base shape; call mup.set_base_shapes")
    if shape.ninf() > 2:
        raise ValueError(f"{shape.ninf()} dimensions of shape {tuple(parameter.shape)} grow; μP knows at most 2")
    return float(shape.width_mult()) if shape.ninf() == 2 else 1.0


def width_groups(params: Params, *, lr: float, weight_decay: float = 0.0, decoupled_wd: bool = False) -> Groups:
    """Parameter groups of one width multiplier each.

    Args:
        params: Parameters, or groups of your own (dicts with ``params``), each of which is split.
        lr: The base model's rate, for groups without one.
        weight_decay: The base model's decay, for groups without one.
        decoupled_wd: Leave the decay as it is, for optimizers that do not multiply it by the rate.

    Raises:
        ValueError: As :func:`width_multiplier`.
    """
    return [group for own in _own_groups(params) for group in _split(own, lr, weight_decay, decoupled_wd)]


def MuAdamWScheduleFree(  # noqa: N802 – an optimizer's name
    params: Params,
    impl: type[torch.optim.Optimizer] = schedulefree.AdamWScheduleFree,
    *,
    lr: float = 0.0025,
    weight_decay: float = 0.0,
    decoupled_wd: bool = False,
    **kwargs: Any,
) -> Any:
    """An Adam-like optimizer with μP's rate and decay for every parameter.

    Args:
        params: As for :func:`width_groups`.
        impl: The optimizer; any that divides by the size of the gradient.
        lr: The base model's rate.
        weight_decay: The base model's decay.
        decoupled_wd: As for :func:`width_groups`.
        **kwargs: For ``impl``.

    Raises:
        ValueError: As :func:`width_multiplier`.
    """
    groups = width_groups(params, lr=lr, weight_decay=weight_decay, decoupled_wd=decoupled_wd)
    return impl(groups, lr=lr, weight_decay=weight_decay, **kwargs)


def _own_groups(params: Params) -> Groups:
    found = list(params)
    if found and isinstance(found[0], Mapping):
        return [dict(group, params=list(group["params"])) for group in found]
    return [{"params": found}]


def _split(own: dict[str, Any], lr: float, weight_decay: float, decoupled_wd: bool) -> Iterator[dict[str, Any]]:
    by_width: dict[float, list[torch.nn.Parameter]] = {}
    for parameter in own["params"]:
        by_width.setdefault(width_multiplier(parameter), []).append(parameter)
    rate, decay = own.get("lr", lr), own.get("weight_decay", weight_decay)
    for m, parameters in by_width.items():
        yield {**own, "params": parameters, "lr": rate / m, "weight_decay": decay if decoupled_wd else decay * m}


class Network(torch.nn.Module):
    """Two hidden layers and a readout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, width), torch.nn.Linear(width, width)
        self.readout = mup.MuReadout(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, 8) to (rows, 1)."""
        return self.readout(torch.relu(self.two(torch.relu(self.one(x)))))


def demonstrate(width: int, base_width: int, updates: int, lr: float, decoupled_wd: bool) -> dict[str, Any]:
    """Train the network and say what its groups are and where it ends, at ``x``."""
    torch.manual_seed(0)
    network = Network(width)
    mup.set_base_shapes(network, Network(base_width), delta=Network(2 * base_width))
    optimizer = MuAdamWScheduleFree(
        network.parameters(), lr=lr, weight_decay=0.1, warmup_steps=updates // 10, decoupled_wd=decoupled_wd
    )
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    groups = [
        {"parameters": [names[id(p)] for p in g["params"]], "lr": g["lr"], "weight_decay": g["weight_decay"]}
        for g in optimizer.param_groups
    ]

    def loss() -> torch.Tensor:
        x = torch.randn(64, 8)
        return (network(x)[:, 0] - torch.sin(x.sum(-1))).square().mean()

    optimizer.train()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for _ in progress.track(range(updates), description=f"width {width}"):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    optimizer.eval()
    with torch.no_grad():
        return {"width": width, "groups": groups, "loss_at_x": sum(loss().item() for _ in range(20)) / 20}


def main() -> int:
    """Show what the pair does at two widths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256, help="of the wide network (default: %(default)s)")
    parser.add_argument("--base-width", type=int, default=64, help="that the rate is for (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=200, help="to train each (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.03, help="at the base width (default: %(default)s)")
    parser.add_argument("--decoupled-wd", action="store_true", help="leave the decay unscaled")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the groups and losses here")
    given = parser.parse_args()
    torch.set_num_threads(1)  # small products: more threads only wait for each other
    results = [
        demonstrate(width, given.base_width, given.updates, given.lr, given.decoupled_wd)
        for width in dict.fromkeys((given.base_width, given.width))
    ]
    table = Table("width", "parameters", "rate", "decay", "loss at x")
    for result in results:
        for index, group in enumerate(result["groups"]):
            first = (str(result["width"]), f"{result['loss_at_x']:.4f}") if index == 0 else ("", "")
            names = ", ".join(group["parameters"])
            table.add_row(first[0], names, f"{group['lr']:g}", f"{group['weight_decay']:g}", first[1])
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
