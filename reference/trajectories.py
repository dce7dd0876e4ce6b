"""Record what the schedule-free optimizers of PyTorch do, alone and under microsoft/mup.

Writes ``tests/data/schedule_free.npz``: for each case the sequences x, y and z after some updates in float64 on the
noisy bowl of the tests, its settings, and the base shapes if μP is in it.
"""

from __future__ import annotations

from typing import Any

import torch_side
from recording import Recording, command

NAME = "schedule_free"
PACKAGES = ("torch", "schedulefree", "mup", "numpy")
TOLERANCE = 1e-12  # another build of torch may add up in another order, for 1000 updates
BASE, DELTA = {"w": (4, 6), "b": (4,), "s": (1,)}, {"w": (8, 12), "b": (8,), "s": (1,)}
PAIR = {"lr": 0.01, "eps": 1e-6, "weight_decay": 0.1, "warmup_steps": 20}
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], dict[str, tuple[int, ...]] | None]] = {
    "adamw": ("adamw", {"lr": 0.0025, "warmup_steps": 100, "weight_decay": 0.1}, (100, 1000), None),
    "adamw_weighted": (
        "adamw",
        {"lr": 0.01, "betas": (0.98, 0.99), "eps": 1e-6, "weight_decay": 0.1, "r": 0.5, "weight_lr_power": 1.0},
        (50,),
        None,
    ),
    "sgd": ("sgd", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "warmup_steps": 5, "r": 0.5}, (1000,), None),
    "radam": ("radam", {"lr": 0.0025, "weight_decay": 0.1}, (50, 1000), None),
    "radam_plain_first": ("radam", {"lr": 0.0025, "weight_decay": 0.1, "silent_sgd_phase": False}, (50,), None),
    "mup_adamw": ("adamw", PAIR, (50, 500), BASE),
    "mup_adamw_decoupled": ("adamw", PAIR | {"decoupled_wd": True}, (50,), BASE),
    "mup_radam": ("radam", {"lr": 0.01, "weight_decay": 0.1}, (50,), BASE),
}


def record() -> Recording:
    """Arrays by ``case/updates/sequence/parameter``."""
    arrays: dict[str, Any] = {}
    for case, (kind, settings, marks, base) in CASES.items():

        def keep(k: int, sequences: dict, _: dict, case: str = case, marks: tuple[int, ...] = marks) -> None:
            if k + 1 in marks:
                for sequence in "xyz":
                    for name, value in sequences[sequence].items():
                        arrays[f"{case}/{k + 1}/{sequence}/{name}"] = value

        torch_side.run(kind, settings, max(marks), base=base, observe=keep)
    cases = {case: [kind, settings, base] for case, (kind, settings, _, base) in CASES.items()}
    return arrays, {"cases": cases, "delta": DELTA}


if __name__ == "__main__":
    command(__doc__, NAME, record, PACKAGES)
