"""Every setting of a run reaches what it is for."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mufree import AdamWScheduleFree
from mufree.training import pretrain
from mufree.training.checkpoint import checkpoints
from mufree.training.loop import Trainer
from mufree.training.manifest import sealed
from mufree.training.prepare import prepare
from training_settings import tiny


def weights(prepared: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(prepared.model.parameters()))


def after_updates(prepared: Any, optimizer: Any) -> dict[str, mx.array]:
    trainer = Trainer(prepared.model, optimizer, lambda number: prepared.train.shuffled(number, 2, 0))
    for _ in range(3):
        trainer.advance()
    return weights(prepared)


def test_the_optimizer_is_the_one_asked_for(tmp_path: Path) -> None:
    """Each of its settings at a value of its own: the updates are those of one made by hand, bit for bit."""
    settings = {"lr": 0.0625, "beta1": 0.75, "beta2": 0.625, "eps": 2.0**-6, "weight_decay": 0.5, "warmup": 7}
    config = tiny(tmp_path / "run", **settings)
    prepared, other, unscaled = prepare(config), prepare(config), prepare(config)
    by_hand = {"learning_rate": 0.0625, "betas": (0.75, 0.625), "eps": 2.0**-6, "weight_decay": 0.5, "warmup_steps": 7}
    found = after_updates(prepared, prepared.optimizer)
    wanted = after_updates(other, AdamWScheduleFree(**by_hand, scales=other.scales))
    assert all(mx.array_equal(value, wanted[path]) for path, value in found.items())
    control = after_updates(unscaled, AdamWScheduleFree(**by_hand))
    assert not all(mx.array_equal(value, control[path]) for path, value in found.items())


def test_the_model_is_the_one_asked_for(tmp_path: Path) -> None:
    """Sizes, further fields, seed, and parts that start at zero."""
    plain = weights(prepare(tiny(tmp_path / "run")))
    assert all(mx.array_equal(value, plain[path]) for path, value in weights(prepare(tiny(tmp_path / "run"))).items())
    other = weights(prepare(tiny(tmp_path / "run", seed=1)))
    assert not mx.array_equal(plain["lm_head.weight"], other["lm_head.weight"])
    for option, path in (("zero_readout", "lm_head.weight"), ("zero_query", "model.layers.0.self_attn.q_proj.weight")):
        zero = weights(prepare(tiny(tmp_path / "run", **{option: True})))
        assert {p for p, value in zero.items() if not mx.any(value).item()} == {path}
    config = prepare(tiny(tmp_path / "run", layers=3, head_dim=4, model={"rope_theta": 777.0})).model_config
    named = ("num_hidden_layers", "head_dim", "rope_theta", "hidden_size", "num_attention_heads")
    assert [config[name] for name in named] == [3, 4, 777.0, 32, 8]


@pytest.mark.parametrize(("rule", "factor"), [("independent", 2.0), ("standard", 1.0), ("none", 0.0)])
def test_decay_scales_as_asked_for(tmp_path: Path, rule: str, factor: float) -> None:
    """At twice the base width: the rate's inverse, with the rate, or not at all."""
    scale = prepare(tiny(tmp_path / "run", decay_rule=rule)).scales["model.layers.0.mlp.up_proj.weight"]
    assert scale.weight_decay == factor


def test_a_run_makes_the_updates_of_its_settings(tmp_path: Path) -> None:
    """Batches by seed and number, accumulated: as by hand, bit for bit."""
    config = tiny(tmp_path / "run", seed=3, accumulation=2, batch_size=3, updates=3)
    pretrain(config)
    prepared = prepare(config)
    trainer = Trainer(
        prepared.model, prepared.optimizer, lambda number: prepared.train.shuffled(number, 3, 3), accumulation=2
    )
    for _ in range(3):
        trainer.advance()
    saved = mx.load(str(checkpoints(tmp_path / "run" / "checkpoints")[-1] / "y.safetensors"))
    assert all(mx.array_equal(value, saved[path]) for path, value in weights(prepared).items())


def test_time_adds_up_and_other_arithmetic_is_told(tmp_path: Path) -> None:
    """A run that goes on counts its seconds on, and says what its bits depended on before."""
    place = tmp_path / "run"
    pretrain(tiny(place, updates=2))
    (saved,) = checkpoints(place / "checkpoints")
    facts = json.loads((saved / "facts.json").read_text())
    assert 0 < facts["position"]["seconds"] < 1000
    facts["position"]["seconds"] = 5000.0
    (saved / "facts.json").write_text(json.dumps(facts))
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["files"]["facts.json"] = hashlib.sha256((saved / "facts.json").read_bytes()).hexdigest()
    manifest["arithmetic"]["blas"] += ", more threads"
    (saved / "manifest.json").write_text(json.dumps(sealed(manifest)))
    told: list[str] = []

    class Heard:
        note = staticmethod(told.append)
        start = record = stop = staticmethod(lambda *_: None)

    pretrain(tiny(place, updates=4), resume=True, report=Heard())  # type: ignore[arg-type]
    assert [text for text in told if text.startswith("not bit for bit as one uninterrupted run: blas was ")]
    after = json.loads((checkpoints(place / "checkpoints")[-1] / "facts.json").read_text())
    assert 5000 < after["position"]["seconds"] < 6000
