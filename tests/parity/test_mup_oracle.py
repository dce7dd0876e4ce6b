"""Against microsoft/mup, where it is installed: groups, rates, decays and the weights after 30 updates in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mufree import (
    BaseShapes,
    MuAdam,
    MuAdamW,
    MuAdamWScheduleFree,
    MuSGD,
    Refused,
    make_base_shapes,
    mup_scales,
    param_groups,
)

torch = pytest.importorskip("torch")
mup = pytest.importorskip("mup")
schedulefree = pytest.importorskip("schedulefree")
from mup_networks import NETWORKS, copied, from_torch, mlx_loss, mlx_network, torch_loss, torch_network  # noqa: E402

from mu_adamw_schedule_free import MuAdamWScheduleFree as pair  # noqa: E402, N813

UPDATES = 30
# Some thousand float64 roundings of 1e-16; the smallest planted mistake (eps scaled) moves weights by 1e-6.
FLOAT64 = 1e-12
# MLX's stock Adam computes its rate and bias correction in float32, relative 1e-7 an update; measured up to 6e-6 on the
# weights. Leaving the decay unscaled moves them by 1e-2.
FLOAT32_SCALARS = 3e-5
RATE, DECAY = 2.0**-7, 2.0**-3
BIASES = "*bias"
INPUT = "*a.weight"


def shapes_of(name: str) -> BaseShapes:
    return make_base_shapes(mlx_network(name, 0), mlx_network(name, 1))


def torch_groups(model: Any, own: bool) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    if not own:
        return [{"params": list(named.values())}]
    biases = [p for path, p in named.items() if path.endswith("bias")]
    first = [p for path, p in named.items() if path.endswith("a.weight") or path == "embed.weight"]
    rest = [p for path, p in named.items() if not path.endswith(("bias", "a.weight", "embed.weight"))]
    return [{"params": biases, "weight_decay": 0.0}, {"params": first, "lr": 2 * RATE}, {"params": rest}]


def our_groups(own: bool) -> list[dict[str, Any]] | None:
    if not own:
        return None
    return [{"match": BIASES, "weight_decay": 0.0}, {"match": [INPUT, "embed.weight"], "learning_rate": 2 * RATE}]


def train(ours: nn.Module, optimizer: Any, theirs: Any, torch_optimizer: Any, name: str) -> None:
    optimizer.init(ours.trainable_parameters())
    for _ in range(UPDATES):
        torch_optimizer.zero_grad()
        torch_loss(theirs, name).backward()
        torch_optimizer.step()
        gradients = nn.value_and_grad(ours, lambda model: mlx_loss(model, name))(ours)[1]
        optimizer.update(ours, gradients)
        mx.eval(ours.parameters(), optimizer.state)


def distance(ours: nn.Module | dict[str, Any], theirs: Any) -> float:
    held = dict(tree_flatten(ours.parameters() if isinstance(ours, nn.Module) else ours))
    differences = []
    for path, p in theirs.named_parameters():
        other = np.array(from_torch(p), dtype=np.float64)
        differences.append(np.abs(np.array(held[path], dtype=np.float64) - other).max() / np.abs(other).max())
    return float(max(differences))


def check_groups(ours: nn.Module, scales: Any, theirs: Any, torch_optimizer: Any, own: bool) -> None:
    """Each of their groups is one of ours, with the same rate and decay; neither side has another."""
    names = {id(p): path for path, p in theirs.named_parameters()}
    expected = {
        frozenset(names[id(p)] for p in group["params"]): (group["lr"], group["weight_decay"])
        for group in torch_optimizer.param_groups
        if group["params"]
    }
    groups = param_groups(
        ours, scales, learning_rate=RATE, weight_decay=DECAY, groups=our_groups(own), decoupled_wd=own
    )
    assert {frozenset(group.paths): (group.learning_rate, group.weight_decay) for group in groups} == expected


@pytest.mark.parametrize("own", [False, True], ids=["one group", "own groups, decoupled"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.filterwarnings("ignore:decoupled_wd:UserWarning")
def test_schedule_free_adamw_follows_mup(name: str, own: bool) -> None:
    """Same groups, rates and decays; x within 1e-12 after 30 updates, m = 8 and 2 or 4, warmup and decay."""
    theirs, _, _ = torch_network(name)
    scales = mup_scales(mlx_network(name), shapes_of(name), scale_eps=False)
    ours = copied(name, theirs)
    settings = {"weight_decay": DECAY, "warmup_steps": 3}
    torch_optimizer = pair(torch_groups(theirs, own), lr=RATE, decoupled_wd=own, **settings)
    optimizer = MuAdamWScheduleFree(
        ours, scales, learning_rate=RATE, groups=our_groups(own), decoupled_wd=own, **settings
    )
    check_groups(ours, scales, theirs, torch_optimizer, own)
    torch_optimizer.train()
    train(ours, optimizer, theirs, torch_optimizer, name)
    torch_optimizer.eval()
    assert distance(optimizer.average(ours.parameters()), theirs) < FLOAT64


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.filterwarnings("ignore:decoupled_wd:UserWarning")
def test_stock_adamw_follows_mup(name: str, own: bool) -> None:
    """Same groups, rates and decays, and the weights after 30 updates as near as MLX's own AdamW is."""
    theirs, _, _ = torch_network(name)
    scales = mup_scales(mlx_network(name), shapes_of(name), scale_eps=False)
    ours = copied(name, theirs)
    torch_optimizer = pair(torch_groups(theirs, own), torch.optim.AdamW, lr=RATE, weight_decay=DECAY, decoupled_wd=own)
    optimizer = MuAdamW(
        ours,
        scales,
        learning_rate=RATE,
        weight_decay=DECAY,
        bias_correction=True,
        groups=our_groups(own),
        decoupled_wd=own,
    )
    check_groups(ours, scales, theirs, torch_optimizer, own)
    train(ours, optimizer, theirs, torch_optimizer, name)
    assert distance(ours, theirs) < FLOAT32_SCALARS


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_reference_pair_has_the_groups_of_mup(name: str, own: bool) -> None:
    """``MuAdam`` of 1.0.0 on schedule-free; decoupled, which it does not know, decays are the base's."""
    model, _, _ = torch_network(name)

    def found(optimizer: Any) -> dict[frozenset[int], tuple[float, float]]:
        groups = [group for group in optimizer.param_groups if group["params"]]
        return {frozenset(map(id, group["params"])): (group["lr"], group["weight_decay"]) for group in groups}

    settings = {"lr": RATE, "weight_decay": DECAY}
    theirs = found(mup.MuAdam(torch_groups(model, own), impl=schedulefree.AdamWScheduleFree, **settings))
    assert found(pair(torch_groups(model, own), **settings)) == theirs
    decoupled = found(pair(torch_groups(model, own), decoupled_wd=True, **settings))
    assert {group: rate for group, (rate, _) in decoupled.items()} == {
        group: rate for group, (rate, _) in theirs.items()
    }
    assert {decay for _, decay in decoupled.values()} == ({DECAY, 0.0} if own else {DECAY})


def test_the_reference_pair_refuses_what_it_cannot_split() -> None:
    """A parameter without a base shape."""
    with pytest.raises(ValueError, match=r"shape \(3, 2\) has no base shape; call mup.set_base_shapes"):
        pair([torch.nn.Parameter(torch.zeros(3, 2))])


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_sgd_follows_mup(name: str) -> None:
    """Same groups, rates and decays for momentum SGD, and the weights within 1e-12."""
    theirs, _, _ = torch_network(name)
    scales = mup_scales(mlx_network(name), shapes_of(name), family="sgd")
    ours = copied(name, theirs)
    torch_optimizer = mup.MuSGD(torch_groups(theirs, False), lr=RATE, momentum=0.5, weight_decay=DECAY)
    optimizer = MuSGD(ours, scales, learning_rate=RATE, momentum=0.5, weight_decay=DECAY)
    check_groups(ours, scales, theirs, torch_optimizer, False)
    train(ours, optimizer, theirs, torch_optimizer, name)
    assert distance(ours, theirs) < FLOAT64


def test_adam_follows_mup() -> None:
    """The plain one has no decay."""
    theirs, _, _ = torch_network("mlp")
    ours = copied("mlp", theirs)
    optimizer = MuAdam(
        ours, mup_scales(ours, shapes_of("mlp"), scale_eps=False), learning_rate=RATE, bias_correction=True
    )
    train(ours, optimizer, theirs, mup.MuAdam(torch_groups(theirs, False), lr=RATE), "mlp")
    assert distance(ours, theirs) < FLOAT32_SCALARS


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_base_shape_files_cross_both_ways(name: str, tmp_path: Path) -> None:
    """mup reads ours, we read mup's, with the same content; a second save writes the same bytes."""
    target, base, delta = torch_network(name)
    mup.make_base_shapes(base, delta, savefile=str(tmp_path / "theirs.bsh"))
    ours = shapes_of(name)
    assert dict(BaseShapes.load(tmp_path / "theirs.bsh")) == dict(ours)
    ours.save(tmp_path / "ours.bsh")
    mup.set_base_shapes(target, str(tmp_path / "ours.bsh"), rescale_params=False)
    BaseShapes.load(tmp_path / "ours.bsh").save(tmp_path / "again.bsh")
    assert (tmp_path / "ours.bsh").read_bytes() == (tmp_path / "again.bsh").read_bytes()
    assert all(p.infshape.base_shape() == list(ours[path]) for path, p in target.named_parameters())


def test_convolutions_from_pytorch_are_refused_until_their_axes_are_mapped(tmp_path: Path) -> None:
    """PyTorch's (out, in, kernel, kernel) is (out, kernel, kernel, in) here."""
    _, base, delta = torch_network("conv")
    mup.make_base_shapes(base, delta, savefile=str(tmp_path / "theirs.bsh"))
    theirs = BaseShapes.load(tmp_path / "theirs.bsh")
    with pytest.raises(Refused, match=r"b\.weight: axis 1 is a kernel axis .*reordered"):
        mup_scales(mlx_network("conv"), theirs)
    mapped = theirs.reordered({"a.weight": (0, 2, 3, 1), "b.weight": (0, 2, 3, 1)})
    assert dict(mapped) == dict(shapes_of("conv"))
