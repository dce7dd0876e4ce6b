"""``mufree pretrain``: train a width-scaled language model from scratch."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import refuse
from ..recipe import Recipe
from ..training.config import DEFAULT_UPDATES, PretrainConfig, check_names, from_mapping
from .options import add_options, given_options, read_yaml

if TYPE_CHECKING:
    from ..training.folder import RunFolder
    from ..training.prepare import Prepared
    from ..training.pretrain import Run
    from ..training.report import ConsoleReporter

HELP = "train a width-scaled language model from scratch, schedule-free, with its learning rate tuned at a base width"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options: one for each setting, and a few of its own."""
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="YAML file of settings; options win over it")
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in --out, also further than first asked"
    )
    parser.add_argument(
        "--recipe",
        dest="recipe_file",
        type=Path,
        metavar="FILE",
        help="settings from what mufree transfer --save wrote",
    )
    parser.add_argument(
        "--despite",
        action="append",
        default=[],
        metavar="NAME",
        help="a setting that is meant to differ from the recipe's, or from the saved run's; may be given again",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan and write nothing but a large text's tokens"
    )
    parser.add_argument("--json", action="store_true", help="print the result (with --dry-run: the plan) as JSON")
    add_options(parser, PretrainConfig)


def run(options: argparse.Namespace) -> int:
    """Train, and show the plan before and a sample after."""
    settings = {
        **(read_yaml(options.config, PretrainConfig) if options.config else {}),
        **given_options(options, PretrainConfig),
    }
    source = str(options.config or "options")
    check_names(settings, source)
    despite = tuple(name.replace("-", "_") for name in options.despite)
    settings = with_recipe(settings, options.recipe_file, despite, resume=options.resume)
    if not options.resume:
        config = from_mapping(settings, source)
    from .blas import prepare_machine

    told = prepare_machine()
    from ..training.folder import RunFolder
    from ..training.overview import overview
    from ..training.prepare import prepare
    from ..training.pretrain import train_prepared
    from ..training.report import ConsoleReporter, OpenConsole

    report = ConsoleReporter(OpenConsole(stderr=options.json))
    if told:
        report.note(told)
    if options.resume:
        folder = RunFolder(Path(PretrainConfig(**{k: v for k, v in settings.items() if k == "out"}).out))
        config = from_mapping(folder.settings(settings), str(folder.path))
    else:
        folder = RunFolder(Path(config.out))
        if not options.dry_run:
            folder.check_free()
    prepared = prepare(config, fresh=folder.is_fresh(options.resume))
    if options.resume:
        folder.check_same(config, prepared.identity(), despite)
    report.console.print(overview(prepared, folder))
    if options.dry_run:
        return _print_json(_planned(prepared)) if options.json else 0
    result = train_prepared(prepared, folder, resume=options.resume, despite=despite, report=report)
    _conclude(report, prepared, folder, result)
    if options.json:
        _print_json(
            {"folder": str(result.folder), "update": result.update, **result.losses, "export": str(result.export)}
        )
    return 0 if result.signal is None else 128 + result.signal


def with_recipe(
    settings: dict[str, Any], file: Path | None, despite: Sequence[str], *, resume: bool = False
) -> dict[str, Any]:
    """The settings with a recipe's under them; the recipe may be named in a YAML file too.

    Raises:
        Refused: For a file that is no recipe, and everything that it does not cover or contradicts.
    """
    named = settings.get("recipe")
    if file is None and isinstance(named, str):
        file = Path(named)
    if file is None:
        if despite and not resume:
            message = "says what may differ from a recipe or a saved run; give --recipe FILE, or --resume"
            refuse("missing", "despite", message)
        return settings
    rest = {name: value for name, value in settings.items() if name != "recipe"}
    return Recipe.load(file).settings_with(rest, despite)


def _conclude(report: ConsoleReporter, prepared: Prepared, folder: RunFolder, result: Run) -> None:
    from ..lm.export import sample

    path = shlex.quote(str(folder.path))
    if result.signal is not None:
        report.note(f"\nstopped after update {result.update}; everything is saved. Go on with:")
        report.note(f"  mufree pretrain --resume --out {path}")
    elif result.export is not None:
        report.note(f"\nThe model, read back by mlx_lm, goes on from {prepared.config.prompt!r}:\n")
        report.note(sample(result.export, prepared.config.prompt) + "\n")
        more = 2 * result.update or DEFAULT_UPDATES
        report.note(f"further: mufree pretrain --resume --out {path} --updates {more}")
    report.note(f"use it:  mlx_lm.generate --model {shlex.quote(str(result.export))} --prompt 'The '")


def _planned(prepared: Prepared) -> dict[str, Any]:
    from ..training.overview import group_rows

    return {
        "plan": prepared.plan.as_metadata(),
        "groups": group_rows(prepared),
        "model_config": prepared.model_config,
        "train_tokens": len(prepared.train.ids),
        "valid_tokens": len(prepared.valid.ids),
    }


def _print_json(value: Any) -> int:
    import json

    print(json.dumps(value, indent=2))
    return 0
