"""Record trajectories of the PyTorch implementations, so that parity is tested where PyTorch is missing.

Writes ``tests/data/schedule_free.npz``: for each case the sequences x, y and z after some updates in float64, the
settings, and the versions that made them.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np

import torch_side

DATA = Path(__file__).parents[1] / "tests" / "data" / "schedule_free.npz"
CASES = {
    "adamw": ("adamw", {"lr": 0.0025, "warmup_steps": 100, "weight_decay": 0.1}, (100, 1000)),
    "adamw_weighted": (
        "adamw",
        {"lr": 0.01, "betas": (0.98, 0.99), "eps": 1e-6, "weight_decay": 0.1, "r": 0.5, "weight_lr_power": 1.0},
        (50,),
    ),
    "sgd": ("sgd", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "warmup_steps": 5, "r": 0.5}, (1000,)),
    "radam": ("radam", {"lr": 0.0025, "weight_decay": 0.1}, (50, 1000)),
    "radam_plain_first": ("radam", {"lr": 0.0025, "weight_decay": 0.1, "silent_sgd_phase": False}, (50,)),
}


def record() -> dict[str, np.ndarray]:
    """All cases as arrays named ``case/updates/sequence/parameter``, and a JSON text ``about``."""
    arrays: dict[str, np.ndarray] = {}
    for case, (kind, settings, marks) in CASES.items():

        def keep(k: int, sequences: dict, _: dict, case: str = case, marks: tuple[int, ...] = marks) -> None:
            if k + 1 in marks:
                for sequence in "xyz":
                    for name, value in sequences[sequence].items():
                        arrays[f"{case}/{k + 1}/{sequence}/{name}"] = value

        torch_side.run(kind, settings, max(marks), observe=keep)
    versions = {name: version(name) for name in ("torch", "schedulefree", "numpy")} | {
        "python": platform.python_version()
    }
    about = {"versions": versions, "cases": {case: [kind, settings] for case, (kind, settings, _) in CASES.items()}}
    return arrays | {"about": np.array(json.dumps(about))}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DATA, help="where to write (default: %(default)s)")
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, **record())
    print(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
