"""Benchmarks: mufree beside what it is compared with, every pair measured side by side in one process run.

Each group is a module in ``benches`` with ``DESCRIPTION`` and ``rows(options) -> Iterator[Row]``. The ratios are the
result; absolute figures depend on the machine and on what else it does.

One command measures all: ``python reference/bench.py --json bench.json``, with mufree installed; it takes some minutes
and 8 GB, with ``--quick`` two or three minutes. On a Mac's GPU: ``--device metal``; on NVIDIA's: ``--device cuda``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import benches
from benches.harness import DEVICES, Options, Row, machine, missing_device, use_device
from mufree.cli.blas import prepare_machine


def groups() -> list[str]:
    """Names of the benchmark groups."""
    return [module.name for module in pkgutil.iter_modules(benches.__path__) if module.name != "harness"]


def table(rows: list[Row]) -> Table:
    """The rows, ratios first."""
    shown = Table(title="mufree beside its neighbours")
    for heading in ("what", "ratio", "must reach", "ours", "theirs"):
        shown.add_column(heading, justify="left" if heading == "what" else "right")
    for row in rows:
        style = None if row.passed is None else "green" if row.passed else "red"
        shown.add_row(
            row.name, f"{row.ratio:.3g}", row.limit_text, row.show(row.ours), row.show(row.theirs), style=style
        )
    return shown


def measure(names: Sequence[str], options: Options, console: Console) -> list[Row]:
    """Every row of the groups, told as it is found."""
    found: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(names))
        for name in names:
            module = importlib.import_module(f"benches.{name}")
            progress.update(task, description=module.DESCRIPTION)
            for row in module.rows(options):
                found.append(row)
                progress.console.print(f"{row.name}: {row.ratio:.3g}", highlight=False)
            progress.advance(task)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the chosen groups; 1 if a limit is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"which of {', '.join(groups())} (default: all)")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--millions", type=int, help="parameters of the large cases, in millions (default: 64)")
    parser.add_argument("--rounds", type=int, help="rounds of each pair; the medians are compared (default: 7)")
    parser.add_argument("--quick", action="store_true", help="4 million and 3 rounds: a look, not for the record")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows and the machine here")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="what computes (default: %(default)s)")
    given = parser.parse_args(arguments)
    unknown = set(given.groups) - set(groups())
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(groups())}")
    told = prepare_machine()  # before MLX is imported
    missing = missing_device(given.device)
    if missing:
        parser.error(f"--device {given.device}: {missing}")
    use_device(given.device)
    millions, rounds = (4, 3) if given.quick else (64, 7)
    options = Options(
        millions=given.millions or millions, rounds=given.rounds or rounds, only=given.only, device=given.device
    )
    console = Console()
    if told:
        console.print(told, highlight=False)
    rows = measure(given.groups or groups(), options, console)
    console.print(table(rows))
    about = machine() | {"device": given.device, "blas": told or "the system's"}
    console.print(", ".join(f"{key} {value}" for key, value in about.items()))
    if given.json:
        result = {"machine": about, "options": options.as_dict(), "rows": [row.as_dict() for row in rows]}
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(any(row.passed is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
