"""``mufree export``: a run's newest checkpoint as a folder for ``mlx_lm.load``."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "export a run's newest checkpoint as a model folder, the average x or the training point y"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run of mufree pretrain")
    parser.add_argument("--weights", choices=("x", "y"), default="x", help="the average, or where gradients were taken")
    parser.add_argument("--best", action="store_true", help="the checkpoint with the lowest validation loss at x")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: RUN/export, RUN/export-y")


def run(options: argparse.Namespace) -> int:
    """Export, and print the folder."""
    from ..training.exporting import export_run

    default = options.run / ("export" if options.weights == "x" else "export-y")
    print(export_run(options.run, options.out or default, weights=options.weights, best=options.best))
    return 0
