"""PyTorch beside MLX: the same weights, data and settings through both, and how far apart they end.

Problems:
  recorded  the schedule-free optimizers alone, on the problem of the recorded trajectories
  mlp       schedulefree, microsoft/mup, and both, on a wide MLP
  language  the same on mufree pretrain's default language model
  lemma     Lemma J.1 of Tensor Programs V for schedule-free, in MLX alone: a difference of exactly 0

In float64 the distance itself has a bound; in float32 the distance from PyTorch's float64 is measured in units of
PyTorch's own float32. Status 1 if a bound does not hold. Some minutes on two cores; with --quick half a minute.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benches.harness import machine
from comparison.rows import FULL, QUICK, Row, Scale
from mufree.cli.blas import prepare_machine

NOTE = """MLX: how far it is from PyTorch's float64, relative; losses: from PyTorch's float32, in nats.
PyTorch: how far its own float32 is from its float64. The worst seed counts."""
PROBLEMS = ("recorded", "mlp", "language", "lemma")


def measure(problems: Sequence[str], scale: Scale, console: Console) -> list[Row]:
    """Every figure of the problems, with progress on the console."""
    modules = {name: importlib.import_module(f"comparison.{name}") for name in problems}
    found: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("comparing", total=sum(module.cases() for module in modules.values()))
        for module in modules.values():
            found += module.rows(scale, lambda done: progress.update(task, advance=1, description=done))
    return found


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """The figures of each problem beside their bounds."""
    for problem in dict.fromkeys(row.problem for row in rows):
        found = [row for row in rows if row.problem == problem]
        shown = Table(title=f"{problem}, {found[0].updates} updates")
        for heading in ("case", "what", "in", "MLX", "PyTorch", "ratio", "bound"):
            shown.add_column(heading, justify="left" if heading in ("case", "what") else "right")
        before = None
        for row in found:
            shown.add_row(
                row.case if row.case != before else "",
                row.what,
                row.precision,
                _figure(row.ours),
                _figure(row.theirs),
                _figure(row.ratio if row.by == "ratio" or row.limit is None else None),
                row.limit_text,
                style=None if row.passed is None else "green" if row.passed else "red",
            )
            before = row.case
        yield shown


def plot(rows: Sequence[Row], path: Path) -> None:
    """Float32's distance from PyTorch's float64 by update, MLX's beside PyTorch's own, one panel a case."""
    import matplotlib.pyplot as plt

    drawn = [row for row in rows if "PyTorch" in row.curves]
    names = list(dict.fromkeys((row.problem, row.case) for row in drawn))
    if not names:
        raise SystemExit("nothing to draw: choose a problem other than lemma")
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4.4 * columns, 3.2 * lines), squeeze=False)
    for axis, name in zip(axes.flat, names, strict=False):
        for index, row in enumerate(row for row in drawn if (row.problem, row.case) == name):
            for whose, style in (("MLX", "-"), ("PyTorch", "--")):
                points = {k: value for k, value in row.curves[whose].items() if value > 0}
                axis.loglog(*zip(*points.items(), strict=True), style, color=f"C{index}", label=f"{row.what}, {whose}")
        axis.set_title(f"{name[0]}: {name[1]}", fontsize=9)
        axis.set_xlabel("update")
        axis.legend(fontsize=6)
    for axis in list(axes.flat)[len(names) :]:
        axis.axis("off")
    figure.supylabel("distance from PyTorch's float64 (training loss: MLX's from PyTorch's float32)", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; 1 if a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=f"of {', '.join(PROBLEMS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer updates and seeds, a smaller language model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, curves and versions here")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the float32 distances here (needs matplotlib)")
    given = parser.parse_args(arguments)
    unknown = set(given.problems) - set(PROBLEMS)
    if unknown:
        parser.error(f"no problem {', '.join(sorted(unknown))}; there are {', '.join(PROBLEMS)}")
    told = prepare_machine()
    console, scale = Console(stderr=True), QUICK if given.quick else FULL
    if told:
        console.print(told, highlight=False)
    rows = measure(given.problems or PROBLEMS, scale, console)
    for shown in tables(rows):
        Console().print(shown)
    print(NOTE)
    if given.json:
        _write(given.json, rows, given.quick)
    if given.plot:
        plot(rows, given.plot)
    failed = [row for row in rows if row.passed is False]
    bound = sum(row.passed is not None for row in rows)
    print(f"{bound - len(failed)} of {bound} bounds hold")
    return int(bool(failed))


def _write(path: Path, rows: Sequence[Row], quick: bool) -> None:
    result: dict[str, Any] = {"machine": machine(), "quick": quick, "rows": [row.as_dict() for row in rows]}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


if __name__ == "__main__":
    sys.exit(main())
