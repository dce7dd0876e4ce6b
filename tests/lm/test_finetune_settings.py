"""Which settings a fine-tune has, and what it says to wrong ones."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.lora
import pytest
from mlx_lm.tuner import callbacks, datasets, trainer, utils

from mufree import Refused
from mufree.lm import FinetuneConfig, finetune
from mufree.lm.tuning import nested
from mufree.lm.tuning.adapters import _differences
from mufree.lm.tuning.choice import CLASSES
from mufree.lm.tuning.mapping import from_mapping
from mufree.lm.tuning.prepare import namespace, prepare
from mufree.plan import mlx_lm as schedules
from tiny_finetune import make_data, make_model, settings

SOURCES = (mlx_lm.lora, datasets, utils, trainer, callbacks)


def read_in(module: Any, *names: str) -> set[str]:
    """Every attribute or key that a module's source reads of variables with these names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        owner = getattr(node, "value", None)
        if isinstance(node, ast.Attribute) and isinstance(owner, ast.Name) and owner.id in names:
            found.add(node.attr)
        if isinstance(node, ast.Subscript) and isinstance(owner, ast.Name) and owner.id in names:
            found |= {node.slice.value} if isinstance(node.slice, ast.Constant) else set()
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], (ast.Constant, ast.Name)):
            function = node.func
            if isinstance(function, ast.Attribute) and function.attr == "get" and isinstance(function.value, ast.Name):
                found |= (
                    {node.args[0].value} if function.value.id in names and hasattr(node.args[0], "value") else set()
                )
            if isinstance(function, ast.Name) and function.id == "getattr" and isinstance(node.args[1], ast.Constant):
                found |= {node.args[1].value} if getattr(node.args[0], "id", None) in names else set()
    return {name for name in found if isinstance(name, str)}


def test_every_key_of_the_installed_mlx_lm_is_known() -> None:
    """Its defaults, its flags, and what its functions read of their arguments; and none of ours is invented."""
    own = {item.name for item in fields(FinetuneConfig)}
    flags = {action.dest for action in mlx_lm.lora.build_parser()._actions} - {"help"}
    read = read_in(mlx_lm.lora, "args") | read_in(datasets, "args")
    read |= {name for name in read_in(datasets, "config") if name != "items"}
    theirs = set(mlx_lm.lora.CONFIG_DEFAULTS) | flags | (read - {"get"})
    assert {"hf_dataset", "text_feature", "mask_prompt", "clear_cache_threshold"} <= theirs
    assert theirs - own == set()
    assert own - theirs == {"warmup", "tuned_on", "base_width", "lora_ratio"}


def test_every_nested_key_of_the_installed_mlx_lm_is_known() -> None:
    """Those of ``lora_parameters``, ``lr_schedule`` and ``hf_dataset``, by what reads them."""
    read = read_in(utils, "config") - {"get", "num_layers", "lora_parameters", "fine_tune_type", "alpha"}
    assert read == set(nested.LORA)
    assert read_in(utils, "schedule_config") - {"get"} == set(schedules.KEYS)
    features = {name for name in read_in(datasets, "config") if name.endswith("_feature")}
    assert features == set(nested.FEATURES)
    assert (read_in(datasets, "ds") - {"get"}) | features == set(nested.HF_DATASET)
    assert set(mlx_lm.lora.CONFIG_DEFAULTS["optimizer_config"]) == set(CLASSES)


def test_defaults_are_mlx_lms() -> None:
    """What nothing was said about is what mlx-lm's functions get from mlx-lm, the optimizer's name and rate apart."""
    args = vars(namespace(from_mapping({"train": True, "seed": None}), None))
    assert args == {**mlx_lm.lora.CONFIG_DEFAULTS, "train": True}
    given = from_mapping({"train": True, "clear_cache_threshold": "1.5GB", "trust_remote_code": True})
    assert vars(namespace(given, None))["clear_cache_threshold"] == 1_500_000_000
    assert [nested.size_of(size) for size in (None, 7, "20", "3MB", "2 g")] == [0, 7, 20, 3_000_000, 2_000_000_000]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt key": ({"lerning_rate": 1e-4}, r"config: lerning_rate: no such key; did you mean learning_rate\?"),
    "a rank that is not positive": (
        {"lora_parameters": {"rank": 0, "dropout": 0.0, "scale": 1.0}},
        r"lora_parameters\.rank: 0; give a whole number from 1 to",
    ),
    "alpha": (
        {"lora_parameters": {"rank": 4, "dropout": 0.0, "alpha": 16}},
        r"lora_parameters\.alpha: .* scale, .*\n.*lora_parameters\.scale: is missing",
    ),
    "a dropout of 1": ({"lora_parameters": {"rank": 1, "dropout": 1.0, "scale": 1.0}}, r"give a number in \[0, 1\)"),
    "keys that are one word": (
        {"lora_parameters": {"rank": 1, "dropout": 0.0, "scale": 1.0, "keys": "q_proj"}},
        r"lora_parameters\.keys: 'q_proj'; give a list",
    ),
    "a schedule that MLX has not": (
        {"lr_schedule": {"name": "cosine", "arguments": [1.0]}},
        r"lr_schedule\.name: 'cosine' .*cosine_decay",
    ),
    "a key of the schedule": (
        {"lr_schedule": {"name": "linear_schedule", "arguments": [1e-3, 0.0, 5], "warmpu": 3}},
        r"lr_schedule\.warmpu: 3 is not read by mlx-lm",
    ),
    "an optimizer nobody knows": ({"optimizer": "adammw"}, r"optimizer: 'adammw' is not known \(did you mean 'adamw'"),
    "a setting of another optimizer": (
        {"optimizer": "sgd", "optimizer_config": {"sgd": {"momentun": 0.9}}},
        r"optimizer_config\.sgd\.momentun: no such setting; did you mean momentum\?",
    ),
    "a value that MLX refuses": (
        {"optimizer": "adam", "optimizer_config": {"adam": {"betas": [2.0, 0.9]}}},
        r"optimizer_config\.adam: MLX's Adam refuses it: .*beta1",
    ),
    "a setting of no planned optimizer": (
        {"optimizer": "lion", "optimizer_config": {"lion": {"beta": [0.9, 0.99]}}},
        r"optimizer_config\.lion\.beta: no such setting; did you mean betas\?",
    ),
    "a schedule on schedule-free": (
        {"optimizer": "schedule_free_adamw", "lr_schedule": {"name": "cosine_decay", "arguments": [1e-3, 5]}},
        "lr_schedule: ",
    ),
    "a warmup that nobody reads": ({"optimizer": "adam", "warmup": 3}, "warmup: 3 is for schedule-free runs"),
    "a warmup that RAdam has not": (
        {"optimizer": "schedule_free_radam", "warmup": 3},
        "warmup: 3 is not read by schedule_free_radam, which has none; leave it out",
    ),
    "a negative rate": ({"learning_rate": -1e-4}, r"learning_rate: -0\.0001 is negative"),
    "a rate that is no number": ({"learning_rate": float("nan")}, "learning_rate: nan is not finite"),
    "no iteration": ({"iters": 0}, "iters: 0 is too small"),
    "a period of 0": ({"steps_per_eval": 0}, "steps_per_eval: 0 is too small"),
    "neither train nor test": ({"train": False}, "train: neither train nor test is asked for"),
    "another kind of tuning": ({"fine_tune_type": "qlora"}, "fine_tune_type: 'qlora'; choose one of: lora, dora, full"),
    "a service that mlx-lm has not": (
        {"report_to": "wandb,mlflow"},
        "report_to: 'mlflow'; mlx-lm knows wandb, swanlab",
    ),
    "a service that is not installed": ({"report_to": "swanlab"}, "report_to: swanlab is not installed"),
    "a dataset without a path": ({"hf_dataset": {"pat": "x"}}, r"hf_dataset\.pat: no such key; did you mean path\?"),
    "layers beyond the model's": ({"num_layers": 3}, "num_layers: 3 is more than the model's 2 layers"),
    "layers that the model has not": (
        {"lora_parameters": {"rank": 1, "dropout": 0.0, "scale": 1.0, "keys": ["attn.q"]}},
        r"lora_parameters\.keys: \['attn\.q'\]: the model has none of them",
    ),
    "a model that is not there": ({"model": "/nowhere/model"}, "model: '/nowhere/model' cannot be loaded"),
    "data that is not there": ({"data": "/nowhere/data"}, "data: '/nowhere/data' cannot be loaded"),
    "a batch larger than the data": ({"batch_size": 9}, "batch_size: 9 is more than the 8 rows of the validation set"),
    "masked prompts in plain text": ({"mask_prompt": True}, "Prompt masking not supported for text dataset"),
    "weights that are not there": (
        {"resume_adapter_file": "/nowhere/a.safetensors"},
        "resume_adapter_file: .* cannot be read",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_settings_are_refused(fault: str, base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where, what was given, what is allowed; nothing is written."""
    changes, says = WRONG[fault]
    monkeypatch.setattr(callbacks, "wandb", object())
    monkeypatch.setattr(callbacks, "swanlab", None)
    with pytest.raises(Refused) as caught:
        finetune({**settings(*base, tmp_path / "out"), **changes})
    assert re.search(says, str(caught.value)), str(caught.value)
    assert not (tmp_path / "out").exists()


def test_wrong_data_folders_are_refused(base: Any, tmp_path: Path) -> None:
    """A file that is missing, empty, no JSON, or of rows of two forms, each with its place."""
    for number, (sets, says) in enumerate(
        (
            ({"train": 0}, r"data: .* has no train\.jsonl"),
            ({"valid": 0}, r"data: .* has no valid\.jsonl; add it, or train without validation .*: val_batches 0"),
            ({"train": 0, "valid": 0}, r"no train\.jsonl.*\n.*no valid\.jsonl"),
        )
    ):
        data = make_data(tmp_path / str(number), **sets)
        with pytest.raises(Refused, match=says):
            finetune(settings(base[0], data, tmp_path / "out"))
    for content, says in (
        ("", r"train\.jsonl: has no row"),
        ('{"text": "a"}\n{"text"\n', r"train\.jsonl:2: is no JSON"),
        ('{"text": "a"}\n["b"]\n', r"train\.jsonl:2: holds a list"),
        ('{"text": "a"}\n{"txt": "b"}\n', r"train\.jsonl:2: has no text, which the first row has"),
        ('{"text": "a"}\n{"text": 5}\n', r"train\.jsonl:2: text is '5' \(int\); give text"),
        ('{"text": null}\n', r"train\.jsonl:1: text is 'None'"),
        ('{"text": ["a"]}\n', r"train\.jsonl:1: text is .* \(list\)"),
        ('{"text": "\\ud800"}\n', r"train\.jsonl:1: text holds half of a surrogate pair"),
        ('{"text": "a", "more": ' + "[" * 100_000 + "\n", r"train\.jsonl:1: is no JSON"),
        ('{"prompt": "a", "completion": null}\n', r"train\.jsonl:1: completion is 'None'"),
        ('{"messages": "hi"}\n', r"train\.jsonl:1: messages is 'hi'; give a list of messages"),
        ('{"messages": []}\n', r"train\.jsonl:1: messages is '\[\]'"),
        ('{"messages": [5]}\n', r"train\.jsonl:1: messages is '\[5\]'"),
        ('{"messages": [{"content": "a"}]}\n' * 4, r"cannot read .* of the training set, UndefinedError"),
        ('{"messages": [{"role": "user", "content": "a"}], "tools": 5}\n' * 4, "of the training set, TypeError"),
        ('{"text": "a"}\n' * 4 + '{"text": ""}\n', "cannot read .* of the training set, IndexError"),
        ('{"sentence": "a"}\n' * 4, r"train\.jsonl:1: has the fields sentence; needed are prompt and completion"),
    ):
        data = make_data(tmp_path / "written")
        (data / "train.jsonl").write_text(content)
        with pytest.raises(Refused, match=says):
            finetune(settings(base[0], data, tmp_path / "out"))
    with pytest.raises(Refused, match=r"data: .* has no test\.jsonl"):
        finetune(settings(base[0], make_data(tmp_path / "n", test=0), tmp_path / "out", test=True))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", ["best", "y", "checkpoints", "metrics.jsonl"])
def test_a_folder_with_something_of_the_users_in_a_parts_place_is_refused(base: Any, tmp_path: Path, part: str) -> None:
    """The run would replace it; adapters that mlx-lm wrote it may replace, as mlx-lm does."""
    (tmp_path / "out" / part).mkdir(parents=True)
    (tmp_path / "out" / part / "mine").write_text("work of days")
    with pytest.raises(Refused, match=f"adapter_path: .* holds {part}, which the run would replace"):
        finetune(settings(*base, tmp_path / "out"))
    assert (tmp_path / "out" / part / "mine").read_text() == "work of days"


def test_a_row_that_the_tokenizer_cannot_read_later_on_is_refused(base: Any, tmp_path: Path) -> None:
    """Not the first one: it is met while the run trains, which says so and leaves the rest as it is."""
    data = make_data(tmp_path / "data", form="chat")
    rows = (data / "train.jsonl").read_text().splitlines()
    rows[5] = '{"messages": [{"content": "a"}]}'
    (data / "train.jsonl").write_text("\n".join(rows))
    with pytest.raises(Refused, match=r"cannot read .*'content': 'a'.* of the training set, UndefinedError"):
        finetune(settings(base[0], data, tmp_path / "out"))


def test_all_problems_are_told_at_once(base: Any, tmp_path: Path) -> None:
    """Settings in one refusal; optimizer, data, model and adapters in another."""
    with pytest.raises(Refused) as caught:
        finetune(settings(*base, tmp_path / "out", iters=0, batch_size="four", lora_parameters=3, nun_layers=1))
    assert {reason.field for reason in caught.value.reasons} == {
        "iters", "batch_size", "lora_parameters", "config: nun_layers"
    }  # fmt: skip
    data = make_data(tmp_path / "data", valid=0)
    with pytest.raises(Refused) as caught:
        finetune(settings(base[0], data, tmp_path / "out", optimizer="adammw", report_to="mlflow", num_layers=9))
    assert {reason.field for reason in caught.value.reasons} == {"optimizer", "data", "report_to", "num_layers"}


def test_adapters_of_another_model_are_refused(base: Any, tmp_path: Path) -> None:
    """mlx-lm loads what fits and is silent about the rest; here each path that does not fit is named."""
    wide = make_model(tmp_path / "wide", hidden_size=128, intermediate_size=256)
    deep = make_model(tmp_path / "deep", num_hidden_layers=3)
    for name, model, layers in (("wide", wide, 2), ("deep", deep, 3)):
        finetune(settings(model, base[1], tmp_path / f"{name}-out", iters=1, num_layers=layers))
    for name, says in (
        ("wide", "lora_a: is .*, here it is"),
        ("deep", r"layers\.2\..*is not a parameter that is trained"),
    ):
        file = tmp_path / f"{name}-out" / "adapters.safetensors"
        with pytest.raises(Refused, match=says):
            finetune(settings(*base, tmp_path / "out", resume_adapter_file=str(file)))
        tested = {"model": str(base[0]), "data": str(base[1]), "test": True, "batch_size": 2}
        with pytest.raises(Refused, match=r"adapter_path: .* cannot be attached to .*incompatible"):
            finetune({**tested, "adapter_path": str(file.parent)})
    with pytest.raises(Refused, match=r"adapter_path: .* cannot be attached"):
        finetune({**tested, "adapter_path": str(tmp_path / "none")})
    mx.save(str(tmp_path / "one.npy"), mx.zeros(2))
    with pytest.raises(Refused, match="holds no arrays by name"):
        finetune(settings(*base, tmp_path / "out", resume_adapter_file=str(tmp_path / "one.npy")))
    described = file.parent / "adapter_config.json"
    described.write_text('{"lora_parameters": {"scale": "ten"}}')
    assert "was trained" not in "".join(_differences(FinetuneConfig(train=True), described))
    mx.save_safetensors(str(tmp_path / "empty.safetensors"), {})
    with pytest.raises(Refused, match="holds no weight"):
        finetune(settings(*base, tmp_path / "out", resume_adapter_file=str(tmp_path / "empty.safetensors")))


def test_a_base_without_trainable_parameters_is_refused(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of which nothing can be unfrozen leave nothing to train; mlx-lm would run, and change nothing."""
    from mlx_lm.models import llama

    monkeypatch.setattr(llama.TransformerBlock, "unfreeze", lambda self, *_, **__: self)
    with pytest.raises(Refused, match="fine_tune_type: 'full' leaves nothing to train"):
        finetune(settings(*base, tmp_path / "out", fine_tune_type="full"))


def test_full_tuning_of_a_quantised_base_is_refused(base: Any, tmp_path: Path) -> None:
    """mlx-lm unfreezes its packed weights, and fails at their gradient."""
    mlx_lm.convert(str(base[0]), str(tmp_path / "q"), quantize=True)
    with pytest.raises(Refused, match="fine_tune_type: 'full' cannot train quantised weights; give lora or dora"):
        finetune(settings(tmp_path / "q", base[1], tmp_path / "out", fine_tune_type="full"))


def test_validations_on_a_part_of_the_rows_are_noted(base: Any, tmp_path: Path) -> None:
    """They differ by the draw too."""
    subset = prepare(from_mapping(settings(*base, tmp_path / "out", val_batches=2)))
    assert any("each validation draws 2 of 4 batches anew" in note for note in subset.notes)
    assert not any("anew" in note for note in prepare(from_mapping(settings(*base, tmp_path / "out"))).notes)


def test_a_run_too_short_for_one_update_is_refused() -> None:
    with pytest.raises(Refused, match="2 micro-batches make no update, since 3 make one; give at least 3"):
        from_mapping({"model": "m", "train": True, "iters": 2, "grad_accumulation_steps": 3, "learning_rate": 1e-3})
    whole = from_mapping({"model": "m", "train": True, "iters": 3, "grad_accumulation_steps": 3, "learning_rate": 1e-3})
    assert whole.iters == 3
    only_tested = {"model": "m", "train": False, "test": True, "iters": 2, "grad_accumulation_steps": 3}
    assert from_mapping(only_tested).test
