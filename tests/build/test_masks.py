"""``decay_mask="hf"`` spares what transformers' Trainer spares, by name and by module type."""

from __future__ import annotations

from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_map

from mufree import build_optimizer, plan_optimizer

DECAYS = {
    "input_layernorm": False,
    "LayerNorm": False,
    "RMSNorm_1": False,
    "my_rmsnorm_x": False,
    "norm": False,
    "Norm": False,
    "q_norm": False,
    "q_norm_x": True,
    "normal": True,
    "enorm": True,
    "bias_net": False,
    "Bias": False,
    "ln": True,
    "proj": True,
}


class Named(nn.Module):
    """A matrix by each name, at the top and further down."""

    def __init__(self) -> None:
        super().__init__()
        for name in DECAYS:
            self[name] = nn.Module()
            self[name].weight = mx.ones((2, 2))
            self[name].inner = nn.Module()
            self[name].inner.weight = mx.ones((2, 2))
        self.plain = nn.Module()
        self.plain.blocks = [nn.Module() for _ in DECAYS]
        for name, block in zip(DECAYS, self.plain.blocks, strict=True):
            block[name] = mx.ones((2, 2))


def decayed(model: nn.Module) -> dict[str, bool]:
    plan = plan_optimizer(optimizer="sgd", lr=0.5, weight_decay=0.5, decay_mask="hf")
    zeros = tree_map(mx.zeros_like, model.parameters())
    after = build_optimizer(plan, model).apply_gradients(zeros, model.parameters())
    return {path: not mx.array_equal(leaf, mx.ones((2, 2))) for path, leaf in tree_flatten(after)}


def test_names_as_transformers_reads_them() -> None:
    """Parts and pieces of a path, in any case, at any depth."""
    found = decayed(Named())
    for index, (name, decays) in enumerate(DECAYS.items()):
        paths = (f"{name}.weight", f"{name}.inner.weight", f"plain.blocks.{index}.{name}")
        assert {path: found[path] for path in paths} == dict.fromkeys(paths, decays)


def test_the_names_are_transformers_s_own() -> None:
    """What its Trainer says of the same paths."""
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    from torch import nn as torch_nn
    from torch import ones
    from transformers import Trainer

    def twin(module: nn.Module) -> torch_nn.Module:
        made = torch_nn.Module()
        for key, value in module.items():
            if isinstance(value, mx.array):
                made.register_parameter(key, torch_nn.Parameter(ones(2, 2)))
            elif isinstance(value, list):
                made.add_module(key, torch_nn.ModuleList([twin(item) for item in value]))
            else:
                made.add_module(key, twin(value))
        return made

    theirs = set(Trainer.get_decay_parameter_names(SimpleNamespace(), twin(Named())))
    assert {path for path, decays in decayed(Named()).items() if decays} == theirs


def test_a_mask_without_decay_asks_for_nothing() -> None:
    """No model, though the mask would need one; with scales too."""

    class Scales(dict):
        family = "sgd"

    plan = plan_optimizer(optimizer="sgd", lr=0.5, decay_mask="hf")
    scale = SimpleNamespace(lr=0.5, eps=1.0, weight_decay=1.0)
    for scales in (None, Scales(w=scale)):
        after = build_optimizer(plan, scales=scales).apply_gradients({"w": mx.ones(1)}, {"w": mx.ones(1)})
        assert after["w"].item() == (0.5 if scales is None else 0.75)
