"""``mufree plan``: decide an optimizer from flags, a YAML file or a transformers run, or say what is wrong with it."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from pathlib import Path
from typing import Any

from mufree.errors import Reasons
from mufree.plan import plan_optimizer
from mufree.plan.files import read_file
from mufree.plan.sources import from_training_arguments

from .options import number

HELP = "decide an optimizer from plain settings, or say everything that is wrong with them"
WORDS = frozenset({"optimizer", "warmup_rounding", "optim_args", "decay_mask", "past_end"})
METAVARS = {
    "optimizer": "NAME",
    "lr": "X",
    "scheduler": "NAME",
    "warmup_ratio": "X",
    "warmup_steps": "N",
    "warmup_rounding": "ceil|floor",
    "weight_decay": "X",
    "total_updates": "N",
    "iters": "N",
    "grad_accumulation_steps": "N",
    "betas": "B1,B2",
    "eps": "X",
    "momentum": "X",
    "optim_args": "KEY=VALUE,…",
    "scheduler_kwargs": "JSON",
    "max_grad_norm": "X",
    "decay_mask": "all|hf",
    "past_end": "hold|refuse",
}
TYPED = {
    "lr": "0.01, 1e-3 or 2^-6",
    "scheduler": """cosine or '{"name": "cosine_decay", "arguments": [1e-3, 100]}'""",
    "betas": "0.9,0.999",
    "scheduler_kwargs": """'{"min_lr_rate": 0.1}'""",
}
"""How a value is typed, where that is not plain from its metavar."""
RIVALS = ({"warmup_ratio", "warmup_steps"}, {"total_updates", "iters"})  # a flag replaces the file's other one too
DECIDING = {"optimizer": "optim", "weight_decay": "weight_decay"}  # they decide what else of a run is meant
_ARGUMENT = re.compile(r"^ +(\w+): (.+?)(?=^ +\w+: |\Z)", re.MULTILINE | re.DOTALL)


def settings() -> dict[str, inspect.Parameter]:
    """Every setting, by name, as the planning function takes it."""
    return dict(inspect.signature(plan_optimizer).parameters)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag a setting, with the words of the planning function's own documentation."""
    documented = inspect.getdoc(plan_optimizer) or ""
    section = documented.partition("Args:\n")[2].partition("\nReturns:")[0]
    helps = {name: " ".join(text.replace("``", "").split()) for name, text in _ARGUMENT.findall(section)}
    for name, parameter in settings().items():
        flag, text = f"--{name.replace('_', '-')}", helps.get(name, "").replace("%", "%%")
        if name in TYPED:
            text += f" Typed as {TYPED[name]}."
        if parameter.default not in (None, False, inspect.Parameter.empty):
            text += f" Default: {parameter.default}."
        if parameter.default is False:
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, dest=name, action=action, default=argparse.SUPPRESS, help=text)
        else:
            parser.add_argument(flag, dest=name, metavar=METAVARS[name], default=argparse.SUPPRESS, help=text)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="settings from a YAML file; flags win over it",
    )
    source.add_argument(
        "--training-arguments",
        type=Path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="settings from a transformers TrainingArguments JSON, meaning what they mean there; flags win over it",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", default=argparse.SUPPRESS, help="also write the plan to this file, as JSON"
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan; refuse with every reason."""
    given = {name: value for name, value in vars(args).items() if name in settings()}
    flags = {name: value if isinstance(value, bool) else _value(name, value) for name, value in given.items()}
    plan = plan_optimizer(**_complete(_from_file(args, flags) | flags))
    if "out" in args:
        args.out.write_text(plan.to_json() + "\n", encoding="utf-8")
    print(plan.to_json() if args.json else plan.table())
    return 0


def _from_file(args: argparse.Namespace, flags: dict[str, Any]) -> dict[str, Any]:
    if "training_arguments" in args:
        deciding = {name: flags[key] for key, name in DECIDING.items() if key in flags}
        return _without_rivals(from_training_arguments(read_file(args.training_arguments) | deciding), flags)
    if "config" not in args:
        return {}
    found = read_file(args.config)
    reasons = Reasons()
    for key in found:
        if key not in settings():
            reasons.add_unknown(f"{args.config}: {key}", key, settings(), "setting")
    reasons.refuse_if_any()
    return _without_rivals({name: _from_yaml(name, value) for name, value in found.items()}, flags)


def _without_rivals(found: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The file's settings without those that a flag takes the place of under another name."""
    replaced = {name for rivals in RIVALS if rivals & set(flags) for name in rivals}
    return {name: value for name, value in found.items() if name not in replaced}


def _complete(found: dict[str, Any]) -> dict[str, Any]:
    reasons = Reasons()
    for name, parameter in settings().items():
        if parameter.default is inspect.Parameter.empty and name not in found:
            reasons.add("missing", name, f"is not given; give --{name.replace('_', '-')} or a file that has it")
    reasons.refuse_if_any()
    return found


def _value(name: str, text: str) -> Any:
    """A flag's value: words as they are, numbers as people write them, mappings as JSON, betas as ``0.9,0.999``."""
    if name in WORDS:
        return text
    if name == "scheduler":
        return _json(text) if text.lstrip().startswith("{") else text
    if name == "betas":
        return [_json(part.strip()) for part in text.strip("[]()").split(",")]
    return _json(text)


def _from_yaml(name: str, value: Any) -> Any:
    """A number that YAML takes for text, such as 2^-6, as one; anything else as it is, for the planner to judge."""
    return _number(value) if isinstance(value, str) and name not in {*WORDS, "scheduler"} else value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _number(text)


def _number(text: str) -> Any:
    """Also what JSON has not: 1., .5, nan and 2^-6. The planner names what is wrong with a text, beside the rest."""
    try:
        return number(text)
    except argparse.ArgumentTypeError:
        return text
