"""``mufree coord-check``: whether activations keep their size when the model gets wider."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Reasons
from ..training.config import PretrainConfig
from .grids import GROUPS, read_grid
from .numbers import whole_numbers
from .options import add_options

if TYPE_CHECKING:
    from ..studies.coordinates import CoordCheck

HELP = "check that no activation grows or shrinks with width during the first updates"
PRESET: Mapping[str, Any] = {
    "widths": [64, 128, 256, 512, 1024],
    "seeds": 3,
    "updates": 10,
    "batch_size": 16,
    "lr": 2.0**-8,
    "zero_readout": True,
    "zero_query": True,
}
"""The rate is part of the check: at four times this one the attention logits follow the width more."""
QUICK: Mapping[str, Any] = {**PRESET, "widths": [64, 256, 1024], "seeds": 1}
"""About a minute on two cores, of cells that the whole check has too, over all its widths: a few narrow ones would show
chance. One seed still may."""

OF_THE_CHECK = ("widths", "seeds", "updates")
_OF_A_CELL = frozenset({"width", "seed", "updates", "tokens", "max_time"})
SCALES = ("mup", "sp", "hidden-rate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The check's options, and those of pretraining that it shares."""
    none = argparse.SUPPRESS
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="YAML file of settings; options win over it")
    parser.add_argument("--quick", action="store_true", help="a look of about a minute: three widths, one seed")
    parser.add_argument(
        "--scales",
        choices=SCALES,
        default="mup",
        help="what to check: μP; SP, MLX's own initialisation and one rate, which fails; or μP with a mistake planted, "
        "hidden rates not divided by the width, which fails too",
    )
    grid = parser.add_argument_group("check")
    grid.add_argument("--widths", type=whole_numbers, default=none, metavar="N,N,…", help="default: 64,…,1024")
    grid.add_argument("--seeds", type=int, default=none, metavar="N", help=f"default: {PRESET['seeds']}")
    grid.add_argument("--updates", type=int, default=none, metavar="N", help=f"default: {PRESET['updates']}")
    output = parser.add_argument_group("study")
    output.add_argument("--out", type=Path, metavar="FOLDER", help="keeps the cells (default: runs/coord-check-SCALES)")
    output.add_argument("--jobs", type=int, metavar="N", help="processes side by side (default: 2 on a CPU)")
    output.add_argument("--plot", type=Path, metavar="FILE", help="write the plot (PNG, SVG or PDF)")
    output.add_argument("--json", action="store_true", help="print the result as JSON")
    add_options(parser, PretrainConfig, groups=GROUPS, leave=_OF_A_CELL, preset=PRESET)


def run(options: argparse.Namespace) -> int:
    """Train what is missing of the check, and say what it shows."""
    grid, config = read(options)
    from .blas import prepare_machine

    told = prepare_machine()
    from rich.console import Console

    from ..studies.coordinate_runs import hidden_rate_not_divided, run_coord_check
    from ..studies.language import language_task
    from ..studies.plots import check_plotting
    from .jobs import helpers
    from .watch import SecondsWatcher

    if options.plot is not None:
        check_plotting()
    console = Console(stderr=options.json)
    task, _ = language_task(config, grid["widths"])
    if options.scales == "hidden-rate":
        task = replace(
            task, adjust=hidden_rate_not_divided, settings={**task.settings, "scales": "hidden rate not divided"}
        )
    out = options.out or Path(f"runs/coord-check-{options.scales}")
    with helpers(options.arguments, options.jobs) as jobs:
        if told:
            console.print(told, highlight=False, soft_wrap=True)
        result = run_coord_check(
            task,
            **grid,
            rate=config.lr,
            folder=out,
            parametrisation="sp" if options.scales == "sp" else "mup",
            name=options.scales,
            watcher=SecondsWatcher(console, jobs=jobs),
        )
    return _conclude(options, out, result, console)


def read(options: argparse.Namespace) -> tuple[dict[str, Any], PretrainConfig]:
    """The check's own settings, and those of its models.

    Raises:
        Refused: With every reason.
    """
    reasons = Reasons()
    grid, config = read_grid(
        options,
        reasons,
        preset=QUICK if options.quick else PRESET,
        lists={"widths": whole_numbers},
        own=OF_THE_CHECK,
        of_a_cell=_OF_A_CELL,
        whose="check",
    )
    return grid, reasons.settled(config)


def _conclude(options: argparse.Namespace, out: Path, result: CoordCheck, console: Any) -> int:
    from ..studies.coordinates import STUDY
    from ..studies.kept import save_result

    path = out / "result.json"
    earlier = save_result(result, STUDY, path)
    written = [str(path)]
    if options.plot is not None:
        written.append(str(result.plot(options.plot)))
    for growth in result.growth:
        mark = "ok" if growth.passed else "FOLLOWS THE WIDTH"
        if growth.one_sided:
            mark += " (a tied head starts at random: it may shrink, not grow)"
        console.print(
            f"{growth.module:<42} at {growth.at}  width^{growth.slope:+.3f}  spread {growth.spread:.2f}  "
            f"update {growth.update:>2}  {mark}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    console.print(f"\n{result.verdict}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"written: {', '.join(written)}", highlight=False, markup=False, soft_wrap=True)
    if earlier is not None:
        console.print(f"kept: the result of other cells that was there, as {earlier}", highlight=False, soft_wrap=True)
    if options.json:
        measured = [
            {
                "module": g.module,
                "at": g.at,
                "slope": g.slope,
                "spread": g.spread,
                "update": g.update,
                "one_sided": g.one_sided,
                "passed": g.passed,
            }
            for g in result.growth
        ]
        print(json.dumps({"passed": result.passed, "verdict": result.verdict, "growth": measured}, indent=2))
    return 0 if result.passed else 1
