"""A fine-tune for which no optimizer is named: schedule-free, at the average at every moment."""

from __future__ import annotations

import json
import math
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import mlx_lm.lora
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner import callbacks
from mlx_lm.tuner.datasets import CacheDataset, TextDataset
from mlx_lm.tuner.trainer import evaluate
from mlx_lm.tuner.utils import load_adapters

from mufree import AdamWScheduleFree, NonFiniteLoss, build_optimizer, plan_optimizer
from mufree.lm import finetune
from mufree.lm.tuning.choice import choose
from mufree.lm.tuning.mapping import from_mapping
from mufree.lm.tuning.optimizers import build
from mufree.training.report import Silent, read_metrics
from tiny_finetune import make_data, settings

# The promise. The same rows in another order: a float32 sum of four terms, each of which is the same.
RELOADED = 1e-6
FORMS = 1e-5  # the same float32 trajectory through two orders of operations
QUICK = {"iters": 40, "learning_rate": 1e-2, "warmup": 5, "steps_per_eval": 10, "steps_per_report": 1}


class Listener(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)

    def record(self, line: Any) -> None:
        self.said.append(" ".join(name for name in line if name.startswith("valid")))


@pytest.fixture(scope="module")
def run(base: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that gets worse after a while, so that the best adapters are not the last ones."""
    out = tmp_path_factory.mktemp("run") / "out"
    finetune(settings(*base, out, **{**QUICK, "learning_rate": 0.1}))
    return out


def loss_of(base: tuple[Path, Path], adapters: Path) -> float:
    """The validation loss of a model that stock mlx-lm loads, by stock mlx-lm."""
    model, tokenizer = mlx_lm.load(str(base[0]), adapter_path=str(adapters))[:2]
    return measured(model, tokenizer, base[1])


def measured(model: Any, tokenizer: Any, data: Path) -> float:
    rows = [json.loads(line) for line in (data / "valid.jsonl").read_text().splitlines()]
    return evaluate(model, CacheDataset(TextDataset(rows, tokenizer)), 2, -1, 40)


def test_what_was_written_has_the_loss_in_the_metrics(base: Any, run: Path) -> None:
    """The last adapters and the best ones, reloaded by mlx-lm, have the losses that were recorded for them at x."""
    lines = [line for line in read_metrics(run / "metrics.jsonl") if "valid_loss_x" in line]
    assert [line["iteration"] for line in lines] == [0, 9, 19, 29, 39, 40]
    best = min(lines, key=lambda line: line["valid_loss_x"])
    assert best["iteration"] not in (0, 40)
    assert loss_of(base, run) == pytest.approx(lines[-1]["valid_loss_x"], rel=RELOADED)
    assert loss_of(base, run / "best") == pytest.approx(best["valid_loss_x"], rel=RELOADED)
    assert abs(lines[-1]["valid_loss_x"] - best["valid_loss_x"]) > 100 * RELOADED
    noted = json.loads((run / "best" / "adapter_config.json").read_text())["mufree"]
    assert noted["losses"]["valid_loss_x"] == best["valid_loss_x"]
    assert (noted["iteration"], noted["sequence"]) == (best["iteration"], "x")


def test_both_files_carry_the_plan(run: Path) -> None:
    """``adapter_config.json`` beside mlx-lm's own keys, and the metadata of the safetensors file."""
    config = json.loads((run / "adapter_config.json").read_text())
    _, metadata = mx.load(str(run / "adapters.safetensors"), return_metadata=True)
    for notes in (config["mufree"], json.loads(metadata["mufree"])):
        plan = notes["plan"]
        assert (plan["optimizer"], plan["peak_lr"], plan["warmup_updates"]) == ("AdamWScheduleFree", 0.1, 5)
        assert (plan["scheduler"], plan["weight_decay"], plan["total_updates"]) == ("constant", 0.0, 40)
        assert (notes["iteration"], notes["update"]) == (40, 40)
    assert config["fine_tune_type"] == "lora"
    assert config["optimizer"] == "schedule_free_adamw"


def test_gradients_are_taken_at_y(base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapters are the average that the form with y in the model has after the same run of ``mlx_lm.lora``."""
    optimizer = AdamWScheduleFree(learning_rate=1e-2, warmup_steps=5)
    monkeypatch.setattr(mlx_lm.lora.optim, "Adam", lambda learning_rate: optimizer)  # noqa: ARG005
    models: list[Any] = []
    train = mlx_lm.lora.train
    monkeypatch.setattr(mlx_lm.lora, "train", lambda model, **rest: models.append(model) or train(model=model, **rest))
    given = settings(*base, tmp_path / "theirs", **{**QUICK, "iters": 30, "grad_accumulation_steps": 2})
    given.pop("warmup")
    mlx_lm.lora.run(SimpleNamespace(**{**mlx_lm.lora.CONFIG_DEFAULTS, **given, "learning_rate": 1e-2}))
    x = dict(tree_flatten(optimizer.average(models[0].trainable_parameters())))
    monkeypatch.undo()
    finetune({**given, "warmup": 5, "adapter_path": str(tmp_path / "ours")})
    ours: Any = mx.load(str(tmp_path / "ours" / "adapters.safetensors"))
    y = dict(tree_flatten(models[0].trainable_parameters()))
    assert max(mx.abs(ours[path] - x[path]).max().item() for path in x) < FORMS
    assert max(mx.abs(ours[path] - y[path]).max().item() for path in x) > 100 * FORMS


def test_the_rate_told_is_the_rate_used(run: Path) -> None:
    """Through the warmup, where mlx-lm's own report would say the peak."""
    rates = [line["lr"] for line in read_metrics(run / "metrics.jsonl") if "loss" in line]
    assert rates[:7] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1], rel=1e-6)


def test_y_is_measured_too(base: Any, tmp_path: Path) -> None:
    """After the last update, on the same rows; where y is the better one it is said, and its adapters are there."""
    heard = Listener()
    few = finetune(settings(*base, tmp_path / "few", **{**QUICK, "iters": 6, "learning_rate": 1e-3}), report=heard)
    losses = few.losses
    assert losses["valid_loss_y"] < losses["valid_loss_x"]
    gap = losses["valid_loss_x"] - losses["valid_loss_y"]
    assert heard.said[-2] == "valid_loss_x valid_loss_y", "the numbers come before what is made of them"
    assert f"y is better than the average x by {gap:.4f} nats" in heard.said[-1]
    assert loss_of(base, tmp_path / "few" / "y") == pytest.approx(losses["valid_loss_y"], rel=RELOADED)
    assert loss_of(base, tmp_path / "few") == pytest.approx(losses["valid_loss_x"], rel=RELOADED)
    y, x = (mx.load(str(tmp_path / "few" / "checkpoints" / "00000006" / f"{name}.safetensors")) for name in "yx")
    last = mx.load(str(tmp_path / "few" / "adapters.safetensors"))
    assert all(mx.array_equal(x[path], last[path]).item() for path in last)
    written = mx.load(str(tmp_path / "few" / "y" / "adapters.safetensors"))
    assert all(mx.array_equal(y[path], written[path]).item() for path in y)
    assert not any(mx.array_equal(x[path], y[path]).item() for path in x if path.endswith("lora_b"))


def test_an_earlier_y_is_not_left_behind(base: Any, tmp_path: Path) -> None:
    """Where the average is the better one, adapters at an earlier y go; somebody else's folder of that name stays."""
    for name, notes, stays in (("ours", {"mufree": {"sequence": "y"}}, False), ("theirs", {}, True)):
        finetune(settings(*base, tmp_path / name, **{**QUICK, "iters": 3}))
        folder = tmp_path / name / "y"
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps(notes))
        losses = finetune({"adapter_path": str(tmp_path / name), "iters": 6}, resume=True).losses
        assert losses["valid_loss_x"] < losses["valid_loss_y"]
        assert folder.exists() == stays


def test_the_run_is_schedule_free_by_itself(base: Any, tmp_path: Path) -> None:
    """Neither optimizer nor schedule: the plan says so, with the rate; a schedule or a name means mlx-lm's."""

    def chosen(**changes: Any) -> Any:
        return choose(from_mapping(settings(*base, tmp_path, **changes)))

    plain = chosen()
    assert (plain.name, plain.rate, plain.schedule_free) == ("schedule_free_adamw", 1e-4, True)
    assert "no schedule: a constant rate of 0.0001 after 20 updates of warmup" in plain.lines[0]
    assert "ten times mlx-lm's default, which is one for its Adam" in plain.lines[1]
    assert chosen(learning_rate=3e-4).rate == 3e-4
    assert chosen(optimizer=None, optimizer_config={"adam": {}, "sgd": {}}).name == "schedule_free_adamw"
    assert (
        "not read, since the optimizer is schedule_free_adamw: optimizer_config.adam"
        in chosen(optimizer_config={"adam": {"eps": 1e-6}, "sgd": {}}).lines
    )
    schedule = {"name": "cosine_decay", "arguments": [1e-4, 10]}
    assert (chosen(lr_schedule=schedule).name, chosen(lr_schedule=schedule).plan) == ("adam", None)
    assert "learning_rate 0.5 is not read" in chosen(lr_schedule=schedule, learning_rate=0.5).lines[1]
    assert chosen(optimizer="adam").rate == 1e-5


def test_adam_here_and_in_the_plan(base: Any, tmp_path: Path) -> None:
    """The same word: in an mlx-lm config mlx-lm's, in ``mufree plan`` torch's; each says so."""
    config = from_mapping(settings(*base, tmp_path, optimizer="adam", learning_rate=1e-3))
    choice = choose(config)
    assert "adam as in mlx-lm" in choice.lines[0]
    assert "no bias correction, first update 3.16 times the rate" in choice.lines[0]
    planned = plan_optimizer(optimizer="adam", lr=1e-3)
    assert "bias-corrected as in torch; the same name in an mlx-lm configuration has no" in planned.notes[0]
    model = nn.Linear(1, 1, bias=False)
    start = model.weight
    optimizer, _ = build(choice, config, model)
    optimizer.update(model, {"weight": mx.ones((1, 1))})
    assert (start - model.weight).item() == pytest.approx(1e-3 * 0.1 / math.sqrt(0.001), rel=1e-3)
    moved = build_optimizer(planned).apply_gradients({"w": mx.ones((1,))}, {"w": mx.zeros((1,))})
    assert -moved["w"].item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"optimizer": "adamw"}, "no bias correction, first update 3.16 times the rate; decay 0.01"),
        ({"optimizer": "adam", "optimizer_config": {"adam": {"bias_correction": True}}}, "bias-corrected"),
        ({"optimizer": "adam", "optimizer_config": {"adam": {"betas": [0.5, 0.75]}}}, "first update 1 times the rate"),
        ({"optimizer": "adafactor"}, "reads no learning_rate"),
        ({"optimizer": "Muon"}, "decay 0.01 joins the gradient"),
        ({"optimizer": "sgd"}, "no momentum"),
        ({"iters": 10, "grad_accumulation_steps": 4}, "2 of 10 micro-batches are left over: 4 make an update"),
        ({"iters": 10, "grad_accumulation_steps": 4, "optimizer": "sgd"}, "2 of 10 micro-batches are left over"),
        ({"iters": 10, "grad_accumulation_steps": 4, "optimizer": "lion"}, None),
    ],
)
def test_the_plan_says_what_a_name_means(changes: dict[str, Any], says: str | None, base: Any, tmp_path: Path) -> None:
    """In one line each; a planned optimizer names leftover micro-batches by itself."""
    choice = choose(from_mapping(settings(*base, tmp_path, **changes)))
    if says is None:
        assert any("2 of 10 micro-batches are left over" in text for text in choice.plan.warnings)
    else:
        assert any(says in text for text in choice.lines)


@pytest.mark.parametrize("name", ["adamw_torch", "schedule_free_sgd", "lion"])
def test_every_name_of_the_plan_works(name: str, base: Any, tmp_path: Path) -> None:
    """With its own settings under ``optimizer_config``."""
    config = {name: {"weight_decay": 0.1, "max_grad_norm": 1.0}}
    run = finetune(settings(*base, tmp_path / "out", optimizer=name, optimizer_config=config, iters=3))
    noted = json.loads((tmp_path / "out" / "adapter_config.json").read_text())["mufree"]["plan"]
    assert (noted["requested_optimizer"], noted["weight_decay"], noted["max_grad_norm"]) == (name, 0.1, 1.0)
    assert ("valid_loss_y" in run.losses) == name.startswith("schedule_free")


def test_accumulation_counts_updates(base: Any, tmp_path: Path) -> None:
    """Ten micro-batches by four are two updates, with the warmup's first two rates."""
    out = tmp_path / "out"
    run = finetune(settings(*base, out, **{**QUICK, "iters": 10, "grad_accumulation_steps": 4}))
    assert run.update == 2
    rates = [line["lr"] for line in read_metrics(out / "metrics.jsonl") if "loss" in line]
    assert rates == pytest.approx([0] * 3 + [0.002] * 4 + [0.004] * 3, rel=1e-6)


def test_reports_go_where_mlx_lms_go(base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``report_to`` gets mlx-lm's own reports, with the rate that was used and the run's own numbers."""
    told: list[dict[str, Any]] = []

    class Service(callbacks.TrainingCallback):
        def __init__(self, **settings: Any) -> None:
            told.append(settings)

        def on_train_loss_report(self, train_info: dict[str, Any]) -> None:
            told.append(train_info)

        def on_val_loss_report(self, val_info: dict[str, Any]) -> None:
            told.append(val_info)

    monkeypatch.setitem(callbacks.SUPPORT_CALLBACK, "wandb", Service)
    monkeypatch.setattr(callbacks, "wandb", object())
    out = tmp_path / "out"
    finetune(settings(*base, out, **{**QUICK, "iters": 3}, report_to=" WandB", project_name="mine"))
    assert told[0]["project_name"] == "mine"
    assert told[0]["config"]["lora_parameters"]["rank"] == 4
    finetune({"adapter_path": str(out), "iters": 5}, resume=True)
    rates = {line["iteration"]: line["learning_rate"] for line in told if "train_loss" in line}
    assert rates == pytest.approx({1: 0.002, 2: 0.004, 3: 0.006, 4: 0.008, 5: 0.01}, rel=1e-6)
    assert [line["iteration"] for line in told if "val_loss" in line] == [0, 2, 4]


def test_datasets_of_the_hub_are_asked_for_as_mlx_lm_asks(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``hf_dataset`` with all its keys: two sets, one of completions under other names, one of texts."""
    asked: list[Any] = []

    def load_dataset(path: str, *, split: str, **config: Any) -> list[dict[str, Any]]:
        asked.append((path, split, config))
        row = {"q": "1 + 1", "a": "two"} if path == "first" else {"body": "a text that goes on"}
        return [dict(row) for _ in range(6)]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    first = {"path": "first", "prompt_feature": "q", "completion_feature": "a", "train_split": "train[:6]"}
    second = {"path": "second", "text_feature": "body", "config": {"name": "small"}, "valid_split": "validation"}
    given = {**settings(*base, tmp_path / "out"), **QUICK, "iters": 2, "hf_dataset": [first, second]}
    run = finetune(given)
    assert asked == [
        ("first", "train[:6]", {}),
        ("first", "train[-10%:]", {}),
        ("second", "train[:80%]", {"name": "small"}),
        ("second", "validation", {"name": "small"}),
    ]
    assert run.update == 2
    assert "mask_prompt" not in first


def test_a_run_without_validation_and_one_that_only_tests(base: Any, tmp_path: Path) -> None:
    """No valid file and ``val_batches`` 0: no best adapters. ``test`` alone measures finished adapters, or none."""
    data = make_data(tmp_path / "data", valid=0)
    run = finetune(settings(base[0], data, tmp_path / "out", **{**QUICK, "iters": 3, "val_batches": 0}, test=True))
    assert run.export is None
    assert "valid_loss_x" not in run.losses
    alone = {"model": str(base[0]), "data": str(data), "test": True, "batch_size": 2, "max_seq_length": 40}
    tested = finetune({**alone, "adapter_path": str(tmp_path / "out")})
    assert tested.losses["test_loss"] == pytest.approx(run.losses["test_loss"], rel=RELOADED)
    assert finetune({**alone, "adapter_path": ""}).losses["test_loss"] > tested.losses["test_loss"]


def test_a_loss_that_blows_up_ends_the_run(base: Any, tmp_path: Path) -> None:
    """And says what is left."""
    given = settings(*base, tmp_path / "out", **{**QUICK, "optimizer": "sgd", "learning_rate": 1e30, "warmup": None})
    with pytest.raises(NonFiniteLoss, match=r"is (nan|inf); there is no checkpoint yet\. Start again"):
        finetune(given)


def test_stock_mlx_lm_uses_what_was_written(
    base: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``mlx_lm.generate`` with the adapters; ``mlx_lm.fuse``, whose model has the loss; ``mlx_lm.convert -q`` of it."""

    def call(command: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"mlx_lm.{command}", *words])
        import_module(f"mlx_lm.{command}").main()
        return capsys.readouterr().out

    paths = ["--model", str(base[0]), "--adapter-path", str(run)]
    assert "=====" in call("generate", *paths, "--prompt", "v1 + 1 = ", "--max-tokens", "4")
    call("fuse", *paths, "--save-path", str(tmp_path / "fused"))
    model, tokenizer = mlx_lm.load(str(tmp_path / "fused"))[:2]
    recorded = read_metrics(run / "metrics.jsonl")[-1]["valid_loss_x"]
    assert measured(model, tokenizer, base[1]) == pytest.approx(recorded, rel=1e-5)  # another order of products
    call("convert", "--hf-path", str(tmp_path / "fused"), "--mlx-path", str(tmp_path / "q"), "-q")
    assert json.loads((tmp_path / "q" / "config.json").read_text())["quantization"]["bits"] == 4
    assert math.isfinite(measured(*mlx_lm.load(str(tmp_path / "q"))[:2], base[1]))


def test_a_full_fine_tune_and_dora_reload_too(base: Any, tmp_path: Path) -> None:
    """Their files hold what is trained and nothing else."""
    for kind in ("full", "dora"):
        out = tmp_path / kind
        run = finetune(settings(*base, out, **{**QUICK, "iters": 4}, fine_tune_type=kind, num_layers=1))
        assert loss_of(base, out) == pytest.approx(run.losses["valid_loss_x"], rel=RELOADED)
        assert all(path.startswith("model.layers.1.") for path in mx.load(str(out / "adapters.safetensors")))


def test_a_quantised_base_reloads_too(base: Any, tmp_path: Path) -> None:
    """Schedule-free on a base of 4 bits, with checkpointed layers."""
    mlx_lm.convert(str(base[0]), str(tmp_path / "q"), quantize=True)
    given = settings(tmp_path / "q", base[1], tmp_path / "out", **{**QUICK, "iters": 4}, grad_checkpoint=True)
    run = finetune(given)
    assert loss_of((tmp_path / "q", base[1]), tmp_path / "out") == pytest.approx(
        run.losses["valid_loss_x"], rel=RELOADED
    )
    model = mlx_lm.load(str(tmp_path / "q"))[0]
    load_adapters(model, str(tmp_path / "out" / "best"))
    assert {"lora_a", "lora_b"} < {path.split(".")[-1] for path, _ in tree_flatten(model.parameters())}
