"""Whole training steps of ``mufree pretrain``'s default model, by four optimizers: ours, MLX's, and PyTorch's two.

Run as a script it makes one step from a fresh process and says how long that took: the time to the first update,
imports included.

    python reference/training_sides.py mufree
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

VOCABULARY, SEED = 257, 0
TORCH_DEVICES = {"cpu": "cpu", "metal": "mps", "cuda": "cuda"}
Step = Callable[[], float]
"""Makes one update, waits for it, and gives the loss."""


def settings() -> Any:
    """Pretraining's defaults."""
    from mufree.training.config import PretrainConfig

    return PretrainConfig()


def model_config() -> dict[str, Any]:
    """The default model, its token ids bytes."""
    from mufree.lm.configs import new_config

    config = settings()
    sizes = {"width": config.width, "layers": config.layers, "head_dim": config.head_dim}
    return new_config(config.model_type, **sizes, vocab_size=VOCABULARY, max_length=2048)


def batch() -> Any:
    """Token ids of one micro-batch, (rows, positions + 1)."""
    import numpy as np

    shape = settings().batch_size, settings().seq_length + 1
    return np.random.default_rng(SEED).integers(0, VOCABULARY, shape, dtype=np.int32)


def mlx_step(ours: bool, device: str = "cpu") -> Step:
    """Pretraining's own compiled step, with its own optimizer or with MLX's AdamW."""
    import mlx.core as mx
    import mlx.optimizers as optim

    from mufree import build_optimizer, parametrize
    from mufree.lm import base_shapes, build
    from mufree.training.loop import Trainer
    from mufree.training.prepare import plan_run

    mx.set_default_device(mx.cpu if device == "cpu" else mx.gpu)
    mx.random.seed(SEED)
    config, tokens = settings(), batch()
    model = build(model_config())
    scales = parametrize(model, base_shapes(model_config(), config.base_width))
    if ours:
        optimizer = build_optimizer(plan_run(config), model, scales=scales)
    else:
        optimizer = optim.AdamW(**_numbers(config, "learning_rate"), bias_correction=True)
    return Trainer(model, optimizer, lambda _: tokens).advance


def torch_step(schedule_free: bool, device: str = "cpu") -> Step:
    """The same model in PyTorch, with schedulefree's AdamW or the fused one."""
    import torch

    from torch_llama import Llama, next_token_loss

    torch.manual_seed(SEED)
    config, where = settings(), TORCH_DEVICES[device]
    model = Llama(model_config()).to(where)
    if schedule_free:
        import schedulefree

        optimizer = schedulefree.AdamWScheduleFree(
            model.parameters(), **_numbers(config, "lr"), warmup_steps=config.warmup, foreach=True
        )
        optimizer.train()
    else:
        optimizer = torch.optim.AdamW(model.parameters(), **_numbers(config, "lr"), fused=True)
    tokens = torch.tensor(batch()).long().to(where)

    def step() -> float:
        optimizer.zero_grad()
        loss = next_token_loss(model, tokens)
        loss.backward()
        optimizer.step()
        if device != "cpu":
            getattr(torch, where).synchronize()
        return loss.item()

    return step


def _numbers(config: Any, rate: str) -> dict[str, Any]:
    return {
        rate: config.lr,
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }


SIDES: dict[str, Callable[[str], Step]] = {
    "mufree": partial(mlx_step, True),
    "MLX AdamW": partial(mlx_step, False),
    "PyTorch schedulefree": partial(torch_step, True),
    "PyTorch AdamW": partial(torch_step, False),
}


def torch_missing(device: str) -> str | None:
    """Why PyTorch cannot be measured on a device, or None."""
    try:
        import schedulefree  # noqa: F401
        import torch
    except ImportError as error:
        return f"{error.name} is not installed"
    there = {"cpu": True, "metal": torch.backends.mps.is_available(), "cuda": torch.cuda.is_available()}[device]
    return None if there else f"this torch has no {TORCH_DEVICES[device]}"


def main() -> int:
    """One update of one side."""
    started = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES, help="whose step")
    parser.add_argument("--device", choices=TORCH_DEVICES, default="cpu", help="where (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the loss and the seconds here")
    given = parser.parse_args()
    if given.side.startswith(("mufree", "MLX")):
        from mufree.cli.blas import prepare_machine

        prepare_machine()
    result = {"side": given.side, "loss": SIDES[given.side](given.device)(), "seconds": time.perf_counter() - started}
    print(f"{given.side}: first loss {result['loss']:.4f} after {result['seconds']:.2f} s")
    if given.json:
        given.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
