"""What a run has come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Run:
    """What a run has come to.

    Args:
        folder: Its folder.
        update: Updates made.
        losses: Last losses by name: ``loss``, ``valid_loss_x``, ``valid_loss_y``; nats a token.
        export: The exported model.
        signal: The signal that stopped it, or None.
    """

    folder: Path
    update: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    export: Path | None = None
    signal: int | None = None
