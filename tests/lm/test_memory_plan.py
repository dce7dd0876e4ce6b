"""What a run will take, against what it took."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner import trainer
from mlx_lm.tuner.utils import linear_to_lora_layers

from mufree import AdamWScheduleFree, lm
from mufree.lm.configs import new_config
from mufree.lm.memory_plan import FACTOR, MemoryPlan, memory_plan

ROWS = 4


def tuned(
    model_type: str = "llama", *, kind: str = "lora", width: int = 128, layers: int = 2, vocab: int = 257,
    bits: int = 0, dtype: mx.Dtype = mx.float32,
) -> nn.Module:  # fmt: skip
    config = new_config(model_type, width=width, layers=layers, head_dim=32, vocab_size=vocab, max_length=2048)
    model = lm.build(config)
    model.set_dtype(dtype)
    if kind != "full":
        model.freeze()
        if bits:
            nn.quantize(model, 32, bits)
        linear_to_lora_layers(model, layers, {"rank": 8, "scale": 20.0, "dropout": 0.0}, use_dora=kind == "dora")
    return model


def nbytes(tree: Any) -> int:
    return sum(array.nbytes for _, array in tree_flatten(tree))


@pytest.mark.parametrize(
    ("model", "rows", "tokens", "options"),
    [
        ({"layers": 4}, ROWS, 128, {}),
        ({}, ROWS, 256, {}),
        ({"vocab": 8000}, ROWS, 64, {}),
        ({"bits": 4}, ROWS, 128, {}),
        ({"kind": "dora"}, ROWS, 128, {}),
        ({"kind": "dora", "width": 256}, 1, 32, {}),
        ({"layers": 8}, ROWS, 128, {"checkpointing": True}),
        ({}, ROWS, 128, {"accumulation": 2, "holds": "x"}),
        ({"dtype": mx.bfloat16}, ROWS, 128, {}),
        ({"model_type": "qwen3"}, 1, 512, {}),
        ({"kind": "full", "model_type": "gemma"}, ROWS, 128, {}),
        ({"kind": "full", "width": 256}, 1, 32, {"accumulation": 2}),
        ({"kind": "full", "width": 256, "dtype": mx.bfloat16}, 1, 32, {"holds": "x"}),
        ({"kind": "full", "width": 256}, 1, 32, {"adamw": True}),
    ],
    ids=str,
)
def test_the_peak_is_as_planned(
    model: dict[str, Any], rows: int, tokens: int, options: dict[str, Any], tmp_path: Any, monkeypatch: Any
) -> None:
    """In mlx-lm's own trainer, within the stated factor either way."""
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    net = tuned(**model)
    adamw, holds = optim.AdamW(1e-4), options.get("holds", "y")
    optimizer = adamw if options.get("adamw") else AdamWScheduleFree(1e-4, model_holds=holds)
    settings = {"accumulation": options.get("accumulation", 1), "checkpointing": options.get("checkpointing", False)}
    plan = memory_plan(net, optimizer, batch_size=rows, seq_length=tokens, **settings)
    mx.eval(net.parameters())
    assert (plan.weights, plan.gradients) == (
        nbytes(net.parameters()),
        nbytes(net.trainable_parameters()) * settings["accumulation"],
    )
    data = [([n % 250 for n in range(tokens + 1)], 0)] * rows
    args = trainer.TrainingArgs(
        batch_size=rows, iters=2 * settings["accumulation"], val_batches=0, steps_per_save=100,
        max_seq_length=tokens + 1, adapter_file=str(tmp_path / "a.safetensors"),
        grad_checkpoint=settings["checkpointing"],
        grad_accumulation_steps=settings["accumulation"],
    )  # fmt: skip
    kind = type(net.layers[0])
    monkeypatch.setattr(kind, "__call__", kind.__call__)  # mlx-lm's checkpointing changes the class
    loss = optimizer.at_y(trainer.default_loss) if holds == "x" else trainer.default_loss
    mx.reset_peak_memory()
    trainer.train(net, optimizer, data, args=args, loss=loss)
    measured = mx.get_peak_memory() - before
    assert plan.state == nbytes(optimizer.state)
    print(f"{measured / plan.total:.3f} {measured / 1e6:.1f} {plan.total / 1e6:.1f}")
    assert plan.total / FACTOR < measured < plan.total * FACTOR


def test_nothing_is_computed_or_changed() -> None:
    """A model far beyond the machine's memory is planned for; classes, optimizer and random state are as before."""
    model = tuned(kind="full", width=32768, layers=40)
    optimizer = AdamWScheduleFree(1e-4)
    classes = [type(module) for _, module in model.named_modules()]
    fused, drawn, active = mx.fast.scaled_dot_product_attention, mx.random.state[0].tolist(), mx.get_active_memory()
    plan = memory_plan(model, optimizer, batch_size=1, seq_length=64)
    assert plan.weights > 1e12
    assert mx.get_active_memory() - active < 1e6
    assert [type(module) for _, module in model.named_modules()] == classes
    assert mx.fast.scaled_dot_product_attention is fused
    assert mx.random.state[0].tolist() == drawn
    assert set(optimizer.state) == set(AdamWScheduleFree(1e-4).state)


def test_a_started_optimizer_is_as_before() -> None:
    """The plan is the same, and so are its arrays."""
    model = tuned(layers=1)
    fresh = memory_plan(model, AdamWScheduleFree(1e-4), batch_size=1, seq_length=8)
    optimizer = AdamWScheduleFree(1e-4)
    optimizer.init(model.trainable_parameters())
    held = [array for _, array in tree_flatten(optimizer.state)]
    assert memory_plan(model, optimizer, batch_size=1, seq_length=8) == fresh
    assert all(one is other for one, (_, other) in zip(held, tree_flatten(optimizer.state), strict=True))


def test_what_the_device_recommends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within it, beyond it with what to do, or not named at all."""
    parts = {"weights": 10**9, "gradients": 10**8, "state": 2 * 10**8, "temporaries": 7 * 10**8}
    unknown = MemoryPlan(**parts)
    assert (unknown.fits, unknown.total) == (None, 2 * 10**9)
    parts_told = "weights 1.0 GB, gradients 100 MB, optimizer state 200 MB, activations and temporaries 700 MB"
    assert unknown.lines() == (f"about 2.0 GB at the peak ({parts_told})",)
    roomy, tight = MemoryPlan(**parts, recommended=2 * 10**9), MemoryPlan(**parts, recommended=10**9)
    assert roomy.fits is True
    assert roomy.lines()[0].endswith("; the device recommends at most 2.0 GB")
    assert len(roomy.lines()) == 1
    assert tight.fits is False
    assert "give a smaller batch" in tight.lines()[1]
    assert tight.as_dict()["total"] == 2 * 10**9
    planning: Any = import_module("mufree.lm.memory_plan")  # the package has a function of that name
    monkeypatch.setattr(planning.mx, "device_info", lambda: {"max_recommended_working_set_size": 123})
    assert planning.recommended_working_set() == 123
    monkeypatch.setattr(planning.mx, "device_info", lambda: {"device_name": "a CPU"})
    assert planning.recommended_working_set() is None
