"""What a reader of a fine-tune's plan should know of its data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .settings import FinetuneConfig

_AROUND = 512
"""Tokens that a chat template may put around a row, which are more than its bytes then."""
_COUNTED = 1000
"""Rows of a set that are looked at for their length, the longest first."""


def data_notes(config: FinetuneConfig, sets: Mapping[str, Any]) -> list[str]:
    """What is to be said of the data before a run.

    Args:
        config: The settings.
        sets: The sets that are used, by name.
    """
    said = []
    if config.hf_dataset and config.data != FinetuneConfig(train=True).data:
        said.append(f"not read: data {config.data!r}, since hf_dataset is given")
    counts = {name: _longer(rows, config.max_seq_length) for name, rows in sets.items()}
    cut = sum(found for found, _ in counts.values())
    if cut:
        told = ", ".join(f"{name} {found} of {len(sets[name])}" for name, (found, _) in counts.items() if found)
        least = "" if all(whole for _, whole in counts.values()) else "at least "
        said.append(f"rows longer than max_seq_length {config.max_seq_length} lose their ends: {least}{told}")
    return said


def _longer(rows: Any, length: int) -> tuple[int, bool]:
    """How many rows have more tokens than a length, and whether all that may have were looked at, longest first."""
    sizes = {number: len(json.dumps(rows[number], default=str).encode()) for number in range(len(rows))}
    chosen = sorted((n for n, size in sizes.items() if size + _AROUND > length), key=sizes.__getitem__, reverse=True)
    looked_at = chosen[:_COUNTED]
    return sum(len(rows.process(rows[number])[0]) > length for number in looked_at), len(looked_at) == len(chosen)
