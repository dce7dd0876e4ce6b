"""``mufree plan``: the table, JSON, refusals, without MLX and fast."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mufree import OptimizerPlan, plan_optimizer
from mufree.cli import run
from mufree.cli.plan import TYPED

SECONDS = 0.5  # what the command may take, interpreter start included
ARRAYS = ("mlx", "mlx_lm", "numpy", "torch", "transformers")
COSINE = ["--optimizer", "adamw_torch", "--lr", "1e-3", "--scheduler", "cosine", "--total-updates", "100"]


def test_the_table_says_what_will_be_built(capsys: pytest.CaptureFixture[str]) -> None:
    """With its warnings."""
    assert run(["plan", *COSINE, "--warmup-ratio", "0.001"]) == 0
    out = capsys.readouterr().out
    assert "AdamW (asked for as adamw_torch)" in out
    assert "warning: the warmup is one update, whose rate is 0" in out


def test_json_is_the_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """On the screen and in a file."""
    assert run(["plan", *COSINE, "--betas", "0.8,0.95", "--json", "--out", str(tmp_path / "plan.json")]) == 0
    plan = plan_optimizer(optimizer="adamw_torch", lr=1e-3, scheduler="cosine", total_updates=100, betas=(0.8, 0.95))
    assert OptimizerPlan.from_json(capsys.readouterr().out) == plan
    assert OptimizerPlan.from_json((tmp_path / "plan.json").read_text(encoding="utf-8")) == plan


def test_a_refusal_is_status_2_with_every_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, without a traceback."""
    assert run(["plan", "--optimizer", "adamw8", "--lr", "abc", "--betas", "0.9"]) == 2
    err = capsys.readouterr().err
    assert all(f"{field}: " in err for field in ("optimizer", "lr", "betas"))
    assert "Traceback" not in err


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The two settings without a default."""
    assert run(["plan"]) == 2
    err = capsys.readouterr().err
    assert "give --optimizer" in err
    assert "give --lr" in err


def test_a_yaml_file_and_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Flags win; a misspelt key is refused by name."""
    path = tmp_path / "plan.yaml"
    path.write_text("optimizer: sgd\nlr: 1e-3\nmomentum: 0.9\n", encoding="utf-8")
    assert run(["plan", "-c", str(path), "--lr", "0.5", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["peak_lr"], plan["momentum"]) == (0.5, 0.9)
    path.write_text("optimizer: sgd\nlr: 1e-3\nmomentun: 0.9\n", encoding="utf-8")
    assert run(["plan", "-c", str(path)]) == 2
    assert "momentun" in capsys.readouterr().err


def test_training_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """They set the mask and the clip; the total may come as a flag."""
    path = tmp_path / "training_args.json"
    path.write_text('{"learning_rate": 1e-4, "weight_decay": 0.1}', encoding="utf-8")
    assert run(["plan", "--training-arguments", str(path), "--total-updates", "40", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["decay_mask"], plan["max_grad_norm"], plan["total_updates"]) == ("hf", 1.0, 40)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--total-updates", "60"], {"total_updates": 60, "warmup_updates": 6}),
        (["--warmup-steps", "3"], {"warmup_updates": 3}),
        (["--iters", "70", "--grad-accumulation-steps", "2"], {"total_updates": 35}),
        (["--optimizer", "sgd"], {"optimizer": "SGD", "betas": None, "eps": None}),
        (["--optimizer", "adagrad"], {"coupled_weight_decay": True, "eps": 1e-10}),
        (["--weight-decay", "0"], {"weight_decay": 0.0}),
        (["--max-grad-norm", "null"], {"max_grad_norm": None}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_flags_win_over_training_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: list[str], expected: dict[str, object]
) -> None:
    """Under whatever name the file said it, and with what else then follows from the flag."""
    path = tmp_path / "training_args.json"
    path.write_text('{"max_steps": 40, "warmup_steps": 0.1, "adam_beta2": 0.98, "weight_decay": 0.1}', encoding="utf-8")
    assert run(["plan", "--training-arguments", str(path), *flags, "--json"]) == 0
    assert expected.items() <= json.loads(capsys.readouterr().out).items()


def test_flags_are_read_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers that JSON does not have; words stay words."""
    assert run(["plan", "--optimizer", "sgd", "--lr", ".5", "--momentum", "0.", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["peak_lr"], plan["momentum"]) == (0.5, 0.0)
    assert run(["plan", "--optimizer", "null", "--lr", "nan", "--decay-mask", "true"]) == 2
    err = capsys.readouterr().err
    assert all(words in err for words in ("'null' is not known", "nan is not finite", "'true' is not known"))


def test_numbers_are_typed_as_for_every_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Powers of two too, in flags, in a pair and in a file."""
    words = ["--optimizer", "adamw_torch", "--weight-decay", "2**-4", "--betas", "0.5,2^-1", "--json"]
    (tmp_path / "plan.yaml").write_text("lr: 2^-6\n")
    for rate in (["--lr", "2^-6"], ["-c", str(tmp_path / "plan.yaml")]):
        assert run(["plan", *words, *rate]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert (plan["peak_lr"], plan["weight_decay"], plan["betas"]) == (2.0**-6, 2.0**-4, [0.5, 0.5])


def test_the_help_says_how_each_value_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """No option takes a mere VALUE, and two numbers are shown as they are typed; that spelling is accepted."""
    with pytest.raises(SystemExit):
        run(["plan", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert " VALUE" not in said
    assert "--betas B1,B2 β1 and β2. Typed as 0.9,0.999." in said
    schedule = TYPED["scheduler"].partition(" or ")[2].strip("'")
    assert run(["plan", "--optimizer", "adamw", "--lr", "1e-3", "--scheduler", schedule]) == 0
    kwargs = ["--scheduler", "cosine_with_min_lr", "--scheduler-kwargs", TYPED["scheduler_kwargs"].strip("'")]
    assert run(["plan", "--optimizer", "adamw", "--lr", "1", "--total-updates", "9", *kwargs]) == 0


def test_a_flag_says_no_to_a_file_s_yes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And replaces a file's total by its iterations."""
    path = tmp_path / "plan.yaml"
    path.write_text("optimizer: sgd\nlr: 1\ncoupled_weight_decay: true\ntotal_updates: 9\n", encoding="utf-8")
    assert run(["plan", "-c", str(path), "--no-coupled-weight-decay", "--iters", "5", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["coupled_weight_decay"], plan["total_updates"]) == (False, 5)


def test_the_readme_s_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """Each ``mufree plan`` line, with the status it says."""
    readme = Path(__file__).parents[2] / "README.md"
    lines = [line for line in readme.read_text(encoding="utf-8").splitlines() if line.startswith("mufree plan ")]
    assert len(lines) >= 2
    for line in lines:
        command, _, comment = line.partition("#")
        assert run(command.split()[1:]) == (2 if "refused" in comment else 0)


def test_without_mlx_and_in_half_a_second() -> None:
    """The command as it is typed, arrays blocked; processor time, the least of three, since the machine may be busy."""
    block = f"import sys; sys.modules.update(dict.fromkeys({ARRAYS!r}))"
    code = f"{block}; from mufree.__main__ import main; sys.argv[1:] = {['plan', *COSINE]!r}; raise SystemExit(main())"
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert "cosine" in done.stdout
    assert min(times) < SECONDS


def test_everything_but_arrays_works_without_mlx() -> None:
    """Planning, refusing, printing, JSON and back, and rates as floats."""
    code = f"""
import sys; sys.modules.update(dict.fromkeys({ARRAYS!r}))
import mufree
plan = mufree.plan_optimizer(optimizer="adamw", lr=0.5, scheduler="linear", total_updates=4)
assert [plan.rate(k) for k in range(4)] == [0.5, 0.375, 0.25, 0.125]
assert mufree.OptimizerPlan.from_json(plan.to_json()) == plan
assert "AdamW" in str(plan)
assert mufree.build_lr_schedule(mufree.plan_optimizer(optimizer="adamw", lr=0.5)) == 0.5
try:
    mufree.plan_optimizer(optimizer="adamw", lr=-1)
except mufree.Refused as refused:
    assert refused.reasons[0].field == "lr"
else:
    raise SystemExit("not refused")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
