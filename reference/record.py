"""Record what the PyTorch side does, so that parity is tested where PyTorch is missing; or see what is stale.

Writes ``tests/data/<name>.npz``, the versions that made it inside. Each recording is a script of its own too:

  schedule_free        trajectories.py  schedulefree's optimizers, alone and under mup
  standard_optimizers  optimizers.py    torch's and transformers' optimizers
  standard_schedules   schedules.py     transformers' schedules
  standard_trainer     trainer.py       transformers' Trainer, end to end

With --check nothing is written; status 1 if a recording is stale: made with other versions, or of other numbers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from recording import DATA, other_numbers, other_versions, read, versions, write

SCRIPTS = {
    "schedule_free": "trajectories",
    "standard_optimizers": "optimizers",
    "standard_schedules": "schedules",
    "standard_trainer": "trainer",
}


def check(name: str, module: Any, folder: Path = DATA) -> list[str]:
    """Why a recording is stale, in sentences; none if it is not."""
    recorded = read(name, folder)
    stale = other_versions(recorded[1], versions([p for p in module.PACKAGES if p != "numpy"]))
    return stale + other_numbers(recorded, module.record(), module.TOLERANCE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or check; 1 if something is stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCRIPTS)} (default: all)")
    parser.add_argument("--check", action="store_true", help="compare with what is recorded, and write nothing")
    parser.add_argument("--out", type=Path, default=DATA, help="folder of the recordings (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found here")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - set(SCRIPTS)
    if unknown:
        parser.error(f"no recording {', '.join(sorted(unknown))}; there are {', '.join(SCRIPTS)}")
    torch.set_num_threads(1)
    found: dict[str, list[str]] = {}
    shown = Table("recording", "stale because" if given.check else "bytes")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for name in progress.track(given.names or list(SCRIPTS), description="recording"):
            module = importlib.import_module(SCRIPTS[name])
            if given.check:
                found[name] = check(name, module, given.out)
                shown.add_row(name, "\n".join(found[name]) or "–")
            else:
                path = write(name, module.record(), packages=module.PACKAGES, folder=given.out)
                shown.add_row(name, f"{path.stat().st_size:,}")
    Console().print(shown)
    if given.json:
        result = {"checked": given.check, "stale": found, "versions": versions(["torch", "numpy"])}
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
