"""Record every sequence of rates that transformers' ``get_scheduler`` gives, and where it raises.

Run: ``python reference/schedules.py``. Writes ``tests/data/standard_schedules.npz``: for each case its settings, and
either the float32 rates of all updates (a hash for long runs) or the name of the error.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import numpy as np
import torch
from transformers import get_scheduler

from recording import Recording, command

NAME = "standard_schedules"
PACKAGES = ("torch", "transformers", "numpy")
TOLERANCE = 0.0
LR = 1e-3
LONG = 10_000  # from this many updates on, only a hash is kept
WARMUPS = (0, 1, 10, 99, 100)
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "linear": [{}],
    "cosine": [{}, {"num_cycles": 1.5}],
    "cosine_with_restarts": [{}, {"num_cycles": 3}],
    "polynomial": [{}, {"power": 2.0, "lr_end": 1e-5}, {"power": 0.5}, {"lr_end": 2e-3}],
    "constant_with_warmup": [{}],
    "inverse_sqrt": [{}, {"timescale": 50}],
    "cosine_with_min_lr": [
        {"min_lr_rate": 0.1},
        {"min_lr": 1e-4, "num_cycles": 1.0},
        {},
        {"min_lr": 1e-4, "min_lr_rate": 0.1},
    ],
    "cosine_warmup_with_min_lr": [
        {"min_lr_rate": 0.1},
        {"min_lr": 1e-4},
        {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2},
        {},
    ],
    "warmup_stable_decay": [
        *(
            {"num_decay_steps": 20, "min_lr_ratio": 0.1, "warmup_type": rise, "decay_type": fall}
            for rise in ("linear", "cosine", "1-sqrt")
            for fall in ("linear", "cosine", "1-sqrt")
        ),
        {"num_decay_steps": 20, "num_stable_steps": 30, "num_cycles": 1.5},
        {"num_decay_steps": 20, "num_stable_steps": 30, "min_lr_ratio": 0.1},
        {},
        {"num_decay_steps": 5, "decay_type": "sine"},
    ],
}


def cases() -> list[dict[str, Any]]:
    """Every name with its options at every warmup of 100 updates, unknown options, and other lengths."""
    found = [{"scheduler": "constant", "options": {}, "warmup": 0, "total": 100}]
    for name, variants in OPTIONS.items():
        for options in [*variants, {"no_such_option": 1}] if name != "constant_with_warmup" else variants:
            found += [{"scheduler": name, "options": options, "warmup": warmup, "total": 100} for warmup in WARMUPS]
        for total, warmup in ((1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (100_000, 0), (100_000, 1000)):
            found.append({"scheduler": name, "options": variants[0], "warmup": warmup, "total": total})
    return found


def rates(case: dict[str, Any]) -> np.ndarray:
    """What the optimizer's rate is at each update; like the Trainer, the schedule also moves on after the last one."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = get_scheduler(case["scheduler"], optimizer, case["warmup"], case["total"], dict(case["options"]))
    found = np.zeros(case["total"])
    for update in range(case["total"]):
        found[update] = optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()
    return found.astype(np.float32)


def record(longest: int | None = None) -> Recording:
    """Every case, or those of at most ``longest`` updates."""
    arrays, recorded = {}, cases()
    for index, case in enumerate(recorded):
        if longest is not None and case["total"] > longest:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sequence = rates(case)
        except (ValueError, TypeError, ZeroDivisionError) as error:
            case["error"] = type(error).__name__
            continue
        if len(sequence) >= LONG:
            case["sha256"] = hashlib.sha256(sequence.tobytes()).hexdigest()
        else:
            arrays[str(index)] = sequence
    return arrays, {"lr": LR, "cases": recorded}


if __name__ == "__main__":
    command(__doc__, NAME, record, PACKAGES)
