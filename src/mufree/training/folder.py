"""A run's folder: who owns it, what it was asked to do, and where it stands."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, Reasons, refuse
from ..files import nearest, read_json, recover, recover_all, there, write_json
from .checkpoint import checkpoints, read_facts, verify
from .config import DESPITE, LENGTHS, WHILE_GOING_ON, PretrainConfig, defaults
from .keeping import best as best_of
from .keeping import is_renamed, written_as
from .manifest import is_whole, sealed

_RUN = "run.json"
_PARTS = ("settings", "identity")
_UNFINISHED = f".{_RUN}.new"
_SOURCES = {
    "model_config": "model, and the mlx-lm,",
    "tokenizer": "tokenizer",
    "train_tokens": "data and tokenizer",
    "valid_tokens": "data and tokenizer",
}
"""By part of a run's identity: what it comes from."""
_OF_DATA = ("train_tokens", "valid_tokens")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run writes.

    Args:
        path: The folder.
    """

    path: Path

    @property
    def description(self) -> Path:
        """What the run is: settings, identity, plan."""
        return self.path / _RUN

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
        """Refuse a folder that holds something already, or that cannot be made.

        Raises:
            Refused: If so, saying what is in the way.
        """
        if there(self.description):
            message = f"{self.path} holds a run; go on with --resume, or give another folder with --out"
            refuse("occupied", "out", message)
        # A process killed while it claimed the folder leaves an unfinished file, which is nobody's.
        if there(self.path) and not (self.path.is_dir() and all(p.name == _UNFINISHED for p in self.path.iterdir())):
            message = f"{self.path} exists and holds no run of mufree's; give another folder with --out"
            refuse("occupied", "out", message)
        place = nearest(self.path)
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            fault = "cannot be written to" if place.is_dir() else "is not a folder"
            refuse("unwritable", "out", f"{place} {fault}, so {self.path} cannot be made; give another folder")

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder, and be the only process that writes to it inside.

        Raises:
            Refused: If it cannot be made, or another process is writing to it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            refuse("unwritable", "out", f"{self.path} cannot be made: {error.strerror}; give another folder")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            refuse("occupied", "out", f"another process is training in {self.path}; wait for it, or stop it")
        except OSError:
            pass  # a filesystem without locks
        try:
            recover(self.export)
            recover_all(self.checkpoints)
            yield
        finally:
            os.close(descriptor)

    def describe(self, config: Any, identity: Mapping[str, Any], plan: Mapping[str, Any], **more: Any) -> str:
        """Keep what the run is, and more of it by name.

        Returns:
            Its name, which no other run has and each of its checkpoints bears.
        """
        name = str(self.saved().get("run") or "") if self.description.is_file() else ""
        name = name or secrets.token_hex(8)
        content = {"run": name, "settings": asdict(config), "identity": dict(identity), "plan": dict(plan), **more}
        write_json(self.description, sealed(content))
        return name

    def saved(self) -> dict[str, Any]:
        """The settings and identity of the run in the folder.

        Raises:
            Refused: If there is none.
            CheckpointError: If what is there is damaged.
        """
        where = self.description
        if not (there(where) and where.is_file()):
            message = f"{self.path} holds no run to resume or export; give the folder of one, or leave --resume out"
            refuse("missing", "out", message)
        try:
            saved = read_json(where)
        except (OSError, ValueError):
            saved = None
        if not is_whole(saved) or any(not isinstance(saved.get(name), dict) for name in _PARTS):
            message = f"{where} is not what mufree writes; its run cannot go on, but its checkpoints may be whole"
            refuse("damaged", "out", message, CheckpointError)
        return saved

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The saved settings with what is given anew over them; a new length replaces the old ones."""
        saved = dict(self.saved()["settings"])
        if any(given.get(name) is not None for name in LENGTHS):
            saved.update(dict.fromkeys(LENGTHS))
        return {**saved, **given, "out": str(self.path)}

    def check_same(
        self, config: PretrainConfig, identity: Mapping[str, Any], despite: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Refuse to go on with another run's settings, model or data.

        Args:
            config: The settings.
            identity: What the run is besides.
            despite: Names of settings that are meant to differ, of :data:`~mufree.training.config.DESPITE`.

        Returns:
            A sentence for each that does differ.

        Raises:
            CheckpointError: With every difference that would change an update and is not meant.
        """
        saved = self.saved()
        before_all = {**defaults(), **saved["settings"]}
        reasons, notes = Reasons(), []
        for name in despite:
            if name not in DESPITE:
                message = f"{name!r} cannot differ from the saved run's; one of: {', '.join(DESPITE)}"
                reasons.add("unknown", "despite", message)
        for name, value in asdict(config).items():
            before = before_all[name]
            if name in WHILE_GOING_ON or value == before:
                continue
            if name in despite:
                notes.append(f"as it is meant to, {name} goes on at {value!r}; it was {before!r}")
                continue
            remedy = f"leave it out, or say that it is meant: --despite {name}" if name in DESPITE else "leave it out"
            reasons.add("contradiction", name, f"{value!r} contradicts the saved run's {before!r}; {remedy}")
        gone = not there(self.checkpoints) or (self.checkpoints.is_dir() and not checkpoints(self.checkpoints))
        if gone and there(self.export):
            message = (
                f"{self.path} has been trained, and its checkpoints are gone; start another run from the weights that "
                f"are left: --weights {self.export}"
            )
            reasons.add("missing", "out", message)
        if not reasons.found:
            for name, value in identity.items():
                if value == saved["identity"].get(name):
                    continue
                if name in _OF_DATA and "data" in despite:
                    notes.append(f"as it is meant to, it goes on with other {name.replace('_', ' ')}")
                    continue
                message = f"is not that of the run in {self.path}; give the {_SOURCES[name]} that it started with"
                reasons.add("contradiction", name, message)
        reasons.refuse_if_any(CheckpointError)
        return tuple(notes)

    def latest(self) -> tuple[Path | None, list[str]]:
        """The newest whole checkpoint of this run, and a sentence for each other one that was passed over.

        Raises:
            CheckpointError: If there are checkpoints and none is whole, with everything that is wrong with each.
        """
        damaged = Reasons()
        found = checkpoints(self.checkpoints)
        run = self.saved().get("run") if found else None
        for path in reversed(found):
            try:
                verify(path)
                _check_in_place(path, run)
            except CheckpointError as error:
                damaged.extend(error)
                continue
            return path, [f"passed over a checkpoint: {reason}" for reason in damaged.found]
        damaged.refuse_if_any(CheckpointError)
        return None, []

    def is_fresh(self, resume: bool) -> bool:
        """Whether a run starts from its beginning: a new one, or one that goes on without a checkpoint yet."""
        return not (resume and checkpoints(self.checkpoints))

    def newest(self, *, best: bool = False, say: Callable[[str], object] | None = None) -> Path:
        """The newest whole checkpoint, or the one with the lowest validation loss at ``x``.

        Args:
            best: Whether the second is wanted, where a loss was measured.
            say: Hears a sentence for each checkpoint that was passed over.

        Raises:
            Refused: If there is none yet.
            CheckpointError: If none is whole.
        """
        path, passed_over = self.latest()
        if say is not None:
            for text in passed_over:
                say(text)
        leader = best_of(checkpoints(self.checkpoints), self.saved().get("run")) if best else None
        if leader is not None:
            verify(leader)
            return leader
        return path or refuse("missing", str(self.path), "has no checkpoint yet; train with a smaller --save-every")

    def check_parts(self) -> None:
        """Refuse a run's folder in which something else has the place of one of its parts.

        Raises:
            Refused: If so, with each.
        """
        reasons = Reasons()
        for path, wanted in ((self.metrics, Path.is_file), (self.checkpoints, Path.is_dir)):
            if there(path) and not wanted(path):
                kind = "a file" if wanted is Path.is_file else "a folder"
                reasons.add("occupied", "out", f"{path} is not {kind}; move it away")
        reasons.refuse_if_any()


def _check_in_place(checkpoint: Path, run: object) -> None:
    facts = read_facts(checkpoint)
    if run is not None and facts.get("run", run) != run:
        refuse("another_run", str(checkpoint), "is a checkpoint of another run", CheckpointError)
    if is_renamed(checkpoint, facts):
        message = f"was written as {written_as(facts):08} and has another name now; give it that one back"
        refuse("renamed", str(checkpoint), message, CheckpointError)
