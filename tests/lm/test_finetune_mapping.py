"""Settings as people have them: a file, a mapping, text for numbers, a key by its name elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mufree import Refused
from mufree.cli import run as command
from mufree.lm import FinetuneConfig, finetune
from mufree.lm.tuning.mapping import from_mapping
from mufree.lm.tuning.prepare import prepare
from tiny_finetune import settings

YAML = """
model: "{model}"
data: "{data}"
adapter_path: "{out}"
learning_rate: 1e-3
iters: 2
batch_size: 2
num_layers: 2
max-seq-length: 40
val_batches: -1
"""


@pytest.fixture
def file(base: Any, tmp_path: Path) -> Path:
    path = tmp_path / "sf.yaml"
    path.write_text(YAML.format(model=base[0], data=base[1], out=tmp_path / "out"))
    return path


def refused(given: Any) -> list[str]:
    with pytest.raises(Refused) as caught:
        finetune(given)
    return [str(reason) for reason in caught.value.reasons]


@pytest.mark.parametrize("kind", [str, Path, lambda path: {"config": path}])
def test_a_file_is_settings_too(kind: Any, file: Path, tmp_path: Path) -> None:
    """By its path, or as a mapping's ``config``."""
    assert finetune(kind(str(file))).update == 2
    config = (tmp_path / "out" / "adapter_config.json").read_text()
    assert '"learning_rate": 0.001' in config
    assert finetune({"config": str(file), "iters": 4}, resume=True).update == 4


def test_settings_beside_a_file_win_over_it(file: Path, tmp_path: Path) -> None:
    """Those that are null do not."""
    config = from_mapping({"config": str(file), "train": True, "iters": 3, "learning_rate": None})
    assert (config.iters, config.learning_rate, config.max_seq_length, config.config) == (3, 1e-3, 40, None)
    (outer := tmp_path / "outer.yaml").write_text(f"config: {file}\ntrain: true\niters: 3\n")
    assert command(["lora", "-c", str(outer), "--dry-run"]) == 0
    assert refused(str(outer)) == [f"{outer}: config: names a further file; put its settings into this one"]
    assert refused({"config": 3}) == ["config: 3 is not a path; give that of a YAML file"]
    assert "cannot be read" in refused({"config": str(tmp_path / "none.yaml")})[0]
    with pytest.raises(Refused, match=r"config: 'a\.yaml' is read where settings are a mapping or a file"):
        FinetuneConfig(train=True, config="a.yaml")


@pytest.mark.parametrize("resume", [False, True])
def test_what_is_no_settings_is_refused(resume: bool) -> None:
    for given in (None, 3):
        with pytest.raises(Refused, match=f"config: {given} is no mapping of settings; .* the path of a YAML file"):
            finetune(given, resume=resume)  # type: ignore[arg-type]


def test_text_that_is_a_number_is_one(base: Any, tmp_path: Path) -> None:
    """As the command and mlx-lm's YAML reader take it, at any depth; not words."""
    schedule = {"name": "cosine_decay", "arguments": ["1e-3", "120", "1e-7"], "warmup": "3", "warmup_init": "1e-7"}
    config = FinetuneConfig(
        train=True,
        learning_rate="1e-3",  # type: ignore[arg-type]
        lora_ratio="2^4",  # type: ignore[arg-type]
        optimizer="adamw",
        optimizer_config={"adamw": {"eps": "1e-6", "betas": ["0.9", "0.98"]}, "lion": {"scheduler": "linear"}},
        lr_schedule=schedule,
        lora_parameters={"rank": "8", "scale": "2e1", "dropout": ".0", "keys": ["self_attn.q_proj"]},
    )
    assert (config.learning_rate, config.lora_ratio) == (1e-3, 16.0)
    assert config.optimizer_config == {"adamw": {"eps": 1e-6, "betas": [0.9, 0.98]}, "lion": {"scheduler": "linear"}}
    assert config.lr_schedule == {
        "name": "cosine_decay", "arguments": [1e-3, 120, 1e-7], "warmup": 3, "warmup_init": 1e-7
    }  # fmt: skip
    assert config.lora_parameters == {"rank": 8, "scale": 20.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    assert schedule["warmup"] == "3"
    given = settings(*base, tmp_path / "out", optimizer_config={"schedule_free_adamw": {"eps": "1e-6"}})
    assert prepare(from_mapping(given)).plan()["eps"] == 1e-6
    for text in ("fast", "1e", "nan"):
        with pytest.raises(Refused, match=r"learning_rate: .*(not a number|not finite)"):
            from_mapping({"train": True, "learning_rate": text})


def test_names_of_elsewhere_are_answered_with_their_place() -> None:
    """And the keys that there are, once."""
    given = {"max_grad_norm": 1, "lora_layers": 8, "rank": 8, "weight_decay": 0.1, "betas": [0.9, 0.99], "eps": 1e-6}
    assert refused({**given, "model": "m"}) == [
        "config: max_grad_norm: no such key; give it in optimizer_config: {schedule_free_adamw: {max_grad_norm: 1}}",
        "config: lora_layers: no such key; mlx-lm's word is num_layers",
        "config: rank: no such key; give it in lora_parameters: {rank: 8}",
        "config: weight_decay: no such key; give it in optimizer_config: {schedule_free_adamw: {weight_decay: 0.1}}",
        "config: betas: no such key; give it in optimizer_config: {schedule_free_adamw: {betas: [0.9, 0.99]}}",
        "config: eps: no such key; give it in optimizer_config: {schedule_free_adamw: {eps: 1e-06}}",
    ]
    assert "optimizer_config: {adamw: {eps: 1}}" in refused({"optimizer": "AdamW", "eps": 1})[0]
    several = refused({"lerning_rate": 1, "zzz": 1, "nun_layers": 2, "eps": 1})
    assert several[:2] == ["config: lerning_rate: no such key; did you mean learning_rate?", "config: zzz: no such key"]
    assert several[2].startswith("config: nun_layers: no such key; did you mean num_layers? The keys are: adapter")
    assert "\n".join(several).count("adapter_path") == 1


def test_examples_of_whole_numbers_fit_their_setting() -> None:
    given = {"iters": "many", "warmup": 2.5, "batch_size": True, "base_width": "x"}
    assert [re.sub(".*; ", "", reason) for reason in refused({"model": "m", **given, "learning_rate": 1})] == [
        f"give one such as {number}" for number in (1000, 4, 20, 128)
    ]


def test_a_layer_key_that_no_layer_has_is_told(base: Any, tmp_path: Path) -> None:
    """mlx-lm passes over it, and so does the run, among others that are there."""
    lora = {"rank": 1, "dropout": 0.0, "scale": 1.0, "keys": ["self_attn.q_proj", "self_attn.w_proj"]}
    notes = prepare(from_mapping(settings(*base, tmp_path / "out", lora_parameters=lora))).notes
    says = "lora_parameters.keys: the model has no self_attn.w_proj, which mlx-lm passes over; did you mean self_attn."
    assert sum(note.startswith(says) for note in notes) == 1
    fine = prepare(from_mapping(settings(*base, tmp_path / "out", lora_parameters={**lora, "keys": lora["keys"][:1]})))
    assert not any("passes over" in note for note in fine.notes)


def test_a_folder_to_start_from_is_answered_with_its_file(base: Any, tmp_path: Path) -> None:
    given = settings(*base, tmp_path / "out", resume_adapter_file=str(tmp_path))
    assert refused(given) == [f"resume_adapter_file: {tmp_path} is a folder; give its adapters.safetensors"]
