"""The folder of a fine-tune: adapters as mlx-lm reads them, and beside them what a run needs to go on.

``adapters.safetensors`` and ``adapter_config.json`` are where mlx-lm writes them, as are the numbered files;
``best`` (and ``y``, where that is the better one) are such folders themselves. Each file is the old one or the new one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import save_config

from ...errors import CheckpointError, Reasons, Refused, refuse
from ...files import failing_as_os_error, flush, read_json, there, whole_folder
from ...training.checkpoint import checkpoints
from ...training.folder import RunFolder
from .mapping import with_file
from .same_run import PLACES, differences
from .settings import FinetuneConfig

ADAPTERS = "adapters.safetensors"
CONFIG = "adapter_config.json"
KEPT = 2
"""Checkpoints that are kept."""
AT_Y = "y"
"""The folder of the last adapters at ``y``."""
NOTES = "mufree"
"""Under which key of both files the plan is."""

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class AdapterFolder(RunFolder):
    """Where a fine-tune writes: mlx-lm's ``adapter_path``."""

    @property
    def export(self) -> Path:
        """The best adapters by validation loss, a folder that ``mlx_lm.load(adapter_path=…)`` reads."""
        return self.path / "best"

    @property
    def at_y(self) -> Path:
        """The last adapters at ``y``, where they were better than the average."""
        return self.path / AT_Y

    @property
    def trainers_own(self) -> Path:
        """Where mlx-lm's trainer may write its last weights; they are written again, with the plan, and this goes."""
        return self.path / ".trainer.safetensors"

    def holds(self, iteration: int) -> bool:
        """Whether the last adapters are here, and are those of an iteration."""
        try:
            return there(self.path / ADAPTERS) and read_json(self.path / CONFIG)[NOTES]["iteration"] == iteration
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def keep_numbered(self, iteration: int) -> None:
        """A copy of the adapters under the iteration's number, as mlx-lm keeps them."""
        beside = self.path / ".numbered.safetensors"
        shutil.copyfile(self.path / ADAPTERS, beside)
        beside.replace(self.path / f"{iteration:07}_{ADAPTERS}")

    def forget_y(self) -> None:
        """Remove what an earlier end of the run left at ``y``, and nobody else's folder: it is no longer the last."""
        try:
            sequence = read_json(self.at_y / CONFIG)[NOTES]["sequence"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if sequence == "y":
            shutil.rmtree(self.at_y)

    def check_free(self) -> None:
        """Refuse to replace a run that could go on; adapters that mlx-lm wrote are replaced, as it would.

        Raises:
            Refused: If there is one, somebody else's folder has the place of a part, or the folder cannot be made.
        """
        if there(self.description):
            message = (
                f"{self.path} holds a run already; go on with --resume if it is one of mufree lora, or give another "
            )
            message += "--adapter-path"
            refuse("occupied", "adapter_path", message)
        if not there(self.path):
            return RunFolder(self.path).check_free()
        if not self.path.is_dir():
            refuse("occupied", "adapter_path", f"{self.path} is a file; give a folder")
        parts = (self.export, self.at_y, self.checkpoints, self.metrics)
        theirs = ", ".join(part.name for part in parts if os.path.lexists(part))
        if theirs:
            message = f"{self.path} holds {theirs}, which the run would replace; move that away, or give another folder"
            refuse("occupied", "adapter_path", message)
        return None

    def replaced(self) -> tuple[str, ...]:
        """A sentence where a run would replace adapters that are not one of ours."""
        if there(self.description) or not there(self.path / ADAPTERS):
            return ()
        try:
            ours = NOTES in read_json(self.path / CONFIG)
        except (OSError, ValueError, TypeError):
            ours = False
        whose = "of another run of mufree lora" if ours else "that mlx_lm.lora wrote"
        stale = sorted(path.name for path in self.path.glob(f"[0-9]*_{ADAPTERS}"))
        left = f"; its numbered files stay until the run has such numbers: {', '.join(stale[:4])}" if stale else ""
        left += " …" if len(stale) > 4 else ""
        return (f"replaces adapters {whose}: {self.path / ADAPTERS} and {CONFIG}{left}",)

    def place_to_go_on(self) -> str:
        """A sentence on where a run that goes on does so."""
        path, passed_over = self.latest()
        return "; ".join([*passed_over, f"goes on from {path}" if path else "has no checkpoint yet: starts anew"])

    def resumed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The saved settings with what is given anew over them."""
        if not there(self.description) and there(self.path / ADAPTERS):
            message = f"{self.path} holds adapters, but no optimizer state to go on from"
            remedy = f"start from their weights with --resume-adapter-file {self.path / ADAPTERS}"
            refuse("missing", "adapter_path", f"{message}; {remedy}")
        self._check_not_gone()
        known = {item.name for item in fields(FinetuneConfig)}
        given = {name: value for name, value in with_file(given).items() if value is not None}
        described = self.saved()
        saved = {name: value for name, value in described["settings"].items() if name in known - {"config"}}
        settings = {**saved, **given, "adapter_path": str(self.path)}
        reasons = Reasons()
        for name in PLACES:
            if name not in given and saved.get(name) and not (name == "data" and settings.get("hf_dataset")):
                settings[name] = _place(reasons, name, saved[name], described.get("places"))
        reasons.refuse_if_any(CheckpointError)
        return settings

    def describe(self, config: Any, identity: Mapping[str, Any], plan: Mapping[str, Any], **more: Any) -> str:
        """Keep what the run is, and where its model and data lie."""
        named = {name: getattr(config, name) for name in PLACES}
        places = {name: str(Path(value).absolute()) for name, value in named.items() if value and there(Path(value))}
        return RunFolder.describe(self, config, identity, plan, places=places, **more)

    def _check_not_gone(self) -> None:
        """Refuse to begin anew over what was trained: without a checkpoint there is nothing to go on from."""
        if checkpoints(self.checkpoints):
            return
        numbered = sorted(self.path.glob(f"[0-9]*_{ADAPTERS}"))[-1:]
        places = (self.path / ADAPTERS, *numbered, self.export / ADAPTERS, self.at_y / ADAPTERS)
        left = next((path for path in places if there(path) and not _is_start(path.parent / CONFIG)), None)
        if left is not None:
            message = f"{self.path} has been trained, and its checkpoints are gone; start another run from the weights"
            remedy = f"that are left, in another folder: --resume-adapter-file {left}"
            refuse("missing", "adapter_path", f"{message} {remedy}", CheckpointError)

    def check_going_on(self, config: FinetuneConfig, identity: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        """Refuse to go on with other settings, another model or other data.

        Raises:
            CheckpointError: With every difference that would change an update.
        """
        reasons = differences(config, identity, plan, self.saved())
        made = max((int(path.name) for path in checkpoints(self.checkpoints)), default=0)
        if config.iters < made:
            message = f"{config.iters} is less than the {made} micro-batches that the run has used already"
            reasons.add("out_of_range", "iters", f"{message}; give more to go on, or leave it out")
        reasons.refuse_if_any(CheckpointError)


def _place(reasons: Reasons, name: str, value: str, places: Mapping[str, str] | None) -> str:
    """Where something is that the saved settings name: there, or where it was when the run was started."""
    was = (places or {}).get(name)
    if there(Path(value)):
        return value
    if was and there(Path(was)):
        return was
    from_hub = not was if places is not None else _HUB_NAME.fullmatch(value)
    if not from_hub:
        kind = "is not there any more" if Path(value).is_absolute() else _relative(was)
        reasons.add("missing", name, f"{value!r} {kind}; give --{name.replace('_', '-')}")
    return value


def _relative(was: str | None) -> str:
    told = f" ({was} is not there any more)" if was else ""
    return f"is relative to the folder that the run was started in{told}"


def _is_start(described: Path) -> bool:
    """Whether adapters are those that a run began with, kept by its very first validation."""
    try:
        return bool(read_json(described)[NOTES]["iteration"] == 0)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def save_adapters(folder: Path, weights: Mapping[str, mx.array], args: Any, notes: Mapping[str, Any]) -> None:
    """Write adapters for ``mlx_lm.load(adapter_path=folder)``, with the plan in both files.

    Args:
        folder: Where; the files that are there are replaced one by one.
        weights: The trained arrays, by path.
        args: The run's settings as mlx-lm has them.
        notes: The plan, the position, the losses.
    """
    beside = folder / f".{ADAPTERS}"  # MLX adds the suffix to names that have none
    with failing_as_os_error(folder):
        mx.save_safetensors(str(beside), dict(sorted(weights.items())), metadata={NOTES: json.dumps(notes)})
    flush(beside)
    described = folder / f".{CONFIG}"
    save_config({**vars(args), NOTES: dict(notes)}, described)
    beside.replace(folder / ADAPTERS)
    described.replace(folder / CONFIG)


def replace_adapters(folder: Path, weights: Mapping[str, mx.array], args: Any, notes: Mapping[str, Any]) -> None:
    """:func:`save_adapters` to a folder of their own, which is the old one or the new one at any moment."""
    with whole_folder(folder) as beside:
        save_adapters(beside, weights, args, notes)


@contextmanager
def named_adapter_path() -> Iterator[None]:
    """Refusals inside name the folder as the settings of a fine-tune do."""
    try:
        yield
    except Refused as refused:
        raise type(refused)(
            replace(r, field="adapter_path" if r.field == "out" else r.field) for r in refused.reasons
        ) from None
