"""``mufree pretrain``: train a width-scaled language model from scratch."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import NonFiniteLoss, Refused, refuse
from ..recipe import Recipe
from ..training.config import DEFAULT_UPDATES, PretrainConfig, check_names, from_mapping
from .blas import prepare_machine
from .options import add_options, settings_of

if TYPE_CHECKING:
    from ..training.folder import RunFolder
    from ..training.prepare import Prepared
    from ..training.ranks import Ranks
    from ..training.report import ConsoleReporter
    from ..training.run import Run

TEMPERATURE = 0.8
"""Of the sampling that is proposed: a small model's most likely words repeat themselves."""
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
    """Train, and show the plan before and a sample after; one of several ranks but the first does so silently."""
    from ..training.joining import joined, launched

    # The BLAS must be there before MLX, by which ranks join; a single process refuses its settings before either.
    told = prepare_machine() if launched() else None
    with joined(lambda text: print(text, file=sys.stderr)) as ranks:
        try:
            return _run(options, ranks, told)
        except (Refused, NonFiniteLoss) as error:
            if ranks.is_first or (isinstance(error, Refused) and not ranks.agreed):
                raise
            return 2 if isinstance(error, Refused) else 1


def _run(options: argparse.Namespace, ranks: Ranks, told: str | None) -> int:
    settings = ranks.together(_settings, options)
    despite = _despite(options)
    if not options.resume:
        config = ranks.together(from_mapping, settings, str(options.config or "options"))
    told = told or prepare_machine()
    from ..training.folder import RunFolder
    from ..training.overview import overview
    from ..training.prepare import prepare
    from ..training.pretrain import train_prepared
    from ..training.report import ConsoleReporter, OpenConsole

    report = ConsoleReporter(OpenConsole(stderr=options.json, quiet=not ranks.is_first))
    if options.resume:
        folder = RunFolder(Path(PretrainConfig(**{k: v for k, v in settings.items() if k == "out"}).out))
        # What a later rank is given stays its own, to be compared, or to say where its files are.
        settings = ranks.first(folder.settings, settings) | settings
        config = ranks.together(from_mapping, settings, str(folder.path))
    else:
        folder = RunFolder(Path(config.out))
        if not options.dry_run:
            ranks.first(folder.check_free)
    fresh = ranks.first(folder.is_fresh, options.resume)
    prepared = ranks.together(lambda: prepare(config, ranks, fresh=fresh))
    if options.resume:
        ranks.first(folder.check_same, config, prepared.identity(), despite)
    report.note(overview(prepared, folder, report.width))
    if options.dry_run:
        return _print_json(_planned(prepared)) if options.json and ranks.is_first else 0
    if told:
        report.note(told)
    result = train_prepared(prepared, folder, resume=options.resume, despite=despite, report=report, ranks=ranks)
    if ranks.is_first:
        _conclude(report, prepared, folder, result)
        if options.json:
            _print_json(
                {"folder": str(result.folder), "update": result.update, **result.losses, "export": str(result.export)}
            )
    return 0 if result.signal is None else 128 + result.signal


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    settings = settings_of(options, PretrainConfig)
    check_names(settings, str(options.config or "options"))
    return with_recipe(settings, options.recipe_file, _despite(options), resume=options.resume)


def _despite(options: argparse.Namespace) -> tuple[str, ...]:
    return tuple(name.replace("-", "_") for name in options.despite)


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
    model, prompt = shlex.quote(str(result.export)), shlex.quote(prepared.config.prompt)
    report.note(f"use it:  mlx_lm.generate --model {model} --prompt {prompt} --temp {TEMPERATURE}")


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
