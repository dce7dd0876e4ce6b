"""``mufree transfer``: find the best rate on a small model, and see whether it is the best of wider ones."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Reasons
from ..studies.cells import PARAMETRISATIONS, check_grid
from ..training.config import PretrainConfig
from .grids import GROUPS, read_grid
from .numbers import rates, whole_numbers
from .options import add_options

if TYPE_CHECKING:
    from ..studies.transfer import Transfer

HELP = "find the best learning rate at the base width, and whether it is the best at other widths, with μP and without"
FULL: Mapping[str, Any] = {
    "widths": [64, 128, 256, 512],
    "rates": [2.0**power for power in range(-10, -2)],
    "seeds": 2,
    "updates": 240,
    "batch_size": 16,
}
QUICK: Mapping[str, Any] = {**FULL, "widths": [64, 128], "rates": [2.0**power for power in range(-9, -3)]}
"""The part of the full grid that a laptop's CPU does in minutes: fewer seeds or updates let chance decide."""

OF_THE_GRID = ("widths", "rates", "seeds", "updates")
_OF_A_CELL = frozenset({"width", "lr", "seed", "updates", "tokens", "max_time"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to sweep: the grid, and the settings that its cells share."""

    widths: list[int]
    rates: list[float]
    seeds: int
    updates: int
    config: PretrainConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The grid's options, and those of pretraining that its cells share."""
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="YAML file of settings; options win over it")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a look of some minutes: two widths of the full grid")
    size.add_argument("--full", action="store_true", help="the grid of the defaults: about two hours on two cores")
    parser.add_argument("--only-base", action="store_true", help="only the best rate at the base width")
    grid = parser.add_argument_group("grid")
    none = argparse.SUPPRESS
    grid.add_argument("--widths", type=whole_numbers, default=none, metavar="N,N,…", help=_text("widths"))
    grid.add_argument("--rates", type=rates, default=none, metavar="A..B", help=_text("rates"))
    grid.add_argument("--seeds", type=int, default=none, metavar="N", help=_text("seeds"))
    grid.add_argument("--updates", type=int, default=none, metavar="N", help=_text("updates"))
    grid.add_argument("--sp", action=argparse.BooleanOptionalAction, default=True, help="also train without μP")
    output = parser.add_argument_group("study")
    output.add_argument("--out", type=Path, default=Path("runs/transfer"), metavar="FOLDER", help="keeps the cells")
    output.add_argument("--jobs", type=int, metavar="N", help="processes side by side (default: 2 on a CPU)")
    output.add_argument("--save", type=Path, metavar="FILE", help="write the recipe")
    output.add_argument("--plot", type=Path, metavar="FILE", help="write the plot (PNG, SVG or PDF)")
    output.add_argument("--json", action="store_true", help="print the result as JSON")
    add_options(parser, PretrainConfig, groups=GROUPS, leave=_OF_A_CELL, preset=FULL)


def run(options: argparse.Namespace) -> int:
    """Train what is missing of the grid, and say what it shows."""
    asked = read(options)
    from .blas import prepare_machine

    told = prepare_machine()
    from rich.console import Console

    from ..studies.console import ConsoleWatcher
    from ..studies.language import language_task, recipe_context
    from ..studies.plots import check_plotting
    from ..studies.transfer import LOSS
    from ..studies.transfer_runs import run_transfer
    from .jobs import helpers

    if options.plot is not None:
        check_plotting()
    console = Console(stderr=options.json)
    task, prepared = language_task(asked.config, asked.widths)
    with helpers(options.arguments, options.jobs) as jobs:
        if told:
            console.print(told, highlight=False, soft_wrap=True)
        result = run_transfer(
            task,
            base_width=asked.config.base_width,
            widths=asked.widths,
            rates=asked.rates,
            updates=asked.updates,
            seeds=asked.seeds,
            folder=options.out,
            parametrisations=PARAMETRISATIONS if options.sp and not options.only_base else ("mup",),
            context=recipe_context(asked.config, task, prepared),
            watcher=ConsoleWatcher(console, lambda row: row["losses"][LOSS], jobs=jobs),
        )
    return _conclude(options, result, console)


def read(options: argparse.Namespace) -> Asked:
    """The settings from the preset, the file and the options.

    Raises:
        Refused: With every reason.
    """
    reasons = Reasons()
    grid, config = read_grid(
        options,
        reasons,
        preset=QUICK if options.quick else FULL,
        lists={"widths": whole_numbers, "rates": rates},
        own=OF_THE_GRID,
        of_a_cell=_OF_A_CELL,
        whose="grid",
    )
    if config is not None:
        grid["widths"] = _widths(grid["widths"], config, options.only_base, reasons)
    reasons.attempt(_check, grid)
    return Asked(config=reasons.settled(config), **grid)


def _widths(widths: Any, config: PretrainConfig, only_base: bool, reasons: Reasons) -> Any:
    if only_base:
        return [config.base_width]
    if len(widths) == 1 and widths[0] == config.base_width:
        reasons.add("too_few", "widths", f"{widths[0]}: one width shows no transfer; give another, or --only-base")
    elif config.base_width not in widths:
        reasons.add("missing", "widths", f"{widths} lack the base width, {config.base_width}, where the rate is tuned")
    return widths


def _check(grid: Mapping[str, Any]) -> None:
    check_grid(**grid)


def _conclude(options: argparse.Namespace, result: Transfer, console: Any) -> int:
    from ..studies.kept import save_result
    from ..studies.transfer import STUDY

    path = options.out / "result.json"
    earlier = save_result(result, STUDY, path)
    written = [str(path)]
    if options.plot is not None:
        written.append(str(result.plot(options.plot)))
    console.print(f"\n{result.verdict}", highlight=False, markup=False, soft_wrap=True)
    recipe = None
    if options.save is not None:
        recipe = result.recipe()
        recipe.save(options.save)
        written.append(str(options.save))
        console.print(f"recipe: {recipe.summary()}", highlight=False, markup=False, soft_wrap=True)
    console.print(result.costs, highlight=False, markup=False, soft_wrap=True)
    console.print(f"written: {', '.join(written)}", highlight=False, markup=False, soft_wrap=True)
    if earlier is not None:
        console.print(f"kept: the result of other cells that was there, as {earlier}", highlight=False, soft_wrap=True)
    if options.json:
        checks = [{"name": c.name, "passed": c.passed, "text": c.text} for c in result.judgement.checks]
        print(
            json.dumps(
                {
                    "passed": result.passed,
                    "verdict": result.verdict,
                    "costs": result.costs,
                    "checks": checks,
                    "table": result.table(),
                    "recipe": None if recipe is None else recipe.as_dict(),
                },
                indent=2,
            )
        )
    return 0 if result.passed else 1


def _text(name: str) -> str:
    value = FULL[name]
    shown = {"widths": "64,128,256,512", "rates": "2^-10..2^-3"}.get(name, value)
    what = {
        "widths": "widths to train, the base width among them",
        "rates": "rates at the base width, every power of two between two, or a list",
        "seeds": "seeds of every cell",
        "updates": "updates of every cell",
    }[name]
    return f"{what} (default: {shown})"
