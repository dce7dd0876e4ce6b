"""A run's folder: who owns it, what it was asked to do, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, Reasons, refuse
from ..files import read_json, write_json
from .checkpoint import checkpoints, verify
from .config import LENGTHS, WHILE_GOING_ON, PretrainConfig

_RUN = "run.json"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run writes.

    Args:
        path: The folder.
    """

    path: Path

    @property
    def metrics(self) -> Path:
        """One JSON object a report."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """One folder a checkpoint, named by its update."""
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        """What ``mlx_lm.load`` reads."""
        return self.path / "export"

    def checkpoint(self, update: int) -> Path:
        """The folder of one checkpoint."""
        return self.checkpoints / f"{update:08}"

    def check_free(self) -> None:
        """Refuse a folder that holds something already.

        Raises:
            Refused: If it does, saying what.
        """
        if self.path.is_dir() and not any(self.path.iterdir()):
            return
        if (self.path / _RUN).is_file():
            refuse(
                "occupied", "out", f"{self.path} holds a run; go on with --resume, or give another folder with --out"
            )
        if self.path.exists():
            refuse(
                "occupied", "out", f"{self.path} exists and holds no run of mufree's; give another folder with --out"
            )

    def claim(self, config: PretrainConfig, identity: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        """Make the folder and keep what the run is."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / _RUN, {"settings": asdict(config), "identity": dict(identity), "plan": dict(plan)})

    def saved(self) -> dict[str, Any]:
        """The settings and identity of the run in the folder.

        Raises:
            Refused: If there is none.
        """
        try:
            return dict(read_json(self.path / _RUN))
        except FileNotFoundError:
            refuse("missing", "out", f"{self.path} holds no run to resume; leave --resume out, or give its folder")
        except ValueError:
            refuse("damaged", "out", f"{self.path / _RUN} is not JSON; its run cannot go on", CheckpointError)

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The saved settings with what is given anew over them; a new length replaces the old ones."""
        saved = dict(self.saved()["settings"])
        if any(given.get(name) is not None for name in LENGTHS):
            saved.update(dict.fromkeys(LENGTHS))
        return {**saved, **given, "out": str(self.path)}

    def check_same(self, config: PretrainConfig, identity: Mapping[str, Any]) -> None:
        """Refuse to go on with another run's settings, model or data.

        Raises:
            CheckpointError: With every difference that would change an update.
        """
        saved = self.saved()
        reasons = Reasons()
        for name, value in asdict(config).items():
            before = saved["settings"].get(name)
            if name not in WHILE_GOING_ON and value != before:
                reasons.add("contradiction", name, f"{value!r} contradicts the saved run's {before!r}; leave it out")
        if not reasons.found:
            for name, value in identity.items():
                if value != saved["identity"].get(name):
                    reasons.add("contradiction", name, f"is not that of the run in {self.path}")
        reasons.refuse_if_any(CheckpointError)

    def latest(self) -> tuple[Path | None, list[str]]:
        """The newest whole checkpoint, and a sentence for each damaged one that was passed over.

        Raises:
            CheckpointError: If there are checkpoints and none is whole.
        """
        damaged: list[str] = []
        found = checkpoints(self.checkpoints)
        for path in reversed(found):
            try:
                verify(path)
            except CheckpointError as error:
                damaged.append(f"passed over a damaged checkpoint: {error}")
                continue
            return path, damaged
        if found:
            refuse("damaged", str(self.checkpoints), "; ".join(damaged), CheckpointError)
        return None, damaged

    def newest(self) -> Path:
        """The newest whole checkpoint.

        Raises:
            Refused: If there is none yet.
        """
        path, _ = self.latest()
        return path or refuse("missing", str(self.path), "has no checkpoint yet; train with a smaller --save-every")
