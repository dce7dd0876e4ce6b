"""Training checkpoints: a folder that is whole or not there.

A checkpoint holds the weights at ``y`` and at ``x``, the optimizer's state, the random state, the position, and a
manifest with the format's version and a checksum of every file. It is written beside its place, flushed to the disk,
and renamed: a run killed at any moment leaves the old one or the new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from ..errors import CheckpointError, Reasons, refuse
from ..files import failing_as_os_error, read_json, whole_folder, write_json
from ..random_state import random_key, set_random_key
from ..schedule_free.modes import members_of
from .machine import arithmetic
from .manifest import is_whole, plain_name, sealed

FORMAT = 3
_ARRAYS = ("y", "x", "optimizer", "random")
_MANIFEST = "manifest.json"
_FACTS = "facts.json"


def save_checkpoint(folder: str | Path, model: Any, optimizer: Any, facts: Mapping[str, Any]) -> Path:
    """Write a checkpoint; ``folder`` is there, whole, when this returns.

    Args:
        folder: Where; an earlier checkpoint there is replaced once the new one is on the disk.
        model: The model as it is trained (a schedule-free one holds ``y``, or ``x`` with ``model_holds="x"``).
        optimizer: Its optimizer; one without an average saves the same weights twice.
        facts: What else to keep, as JSON: position, settings, plan.

    Returns:
        The folder.

    Raises:
        OSError: If it cannot be written. What was there before still is.
        Refused: If the model holds ``x`` for the time being, put there by ``eval`` or ``averaged``.
    """
    folder = Path(folder)
    point = average = model.parameters()
    for member in members_of(optimizer):
        if member.holds_average:
            message = (
                "holds the average x, from which training cannot go on; save after train(model) or the averaged block"
            )
            refuse("holds_x", "model", message)
        average, point = member.average(average), member.gradient_point(point)
    arrays = {
        "y": dict(tree_flatten(point)),
        "x": dict(tree_flatten(average)),
        "optimizer": dict(tree_flatten(optimizer.state)),
        "random": {"key": random_key()},
    }
    with whole_folder(folder) as beside:
        for name, values in arrays.items():
            with failing_as_os_error(folder):
                # MLX lays a file out by insertion: sorted, equal arrays make equal files.
                mx.save_safetensors(str(beside / f"{name}.safetensors"), dict(sorted(values.items())))
        write_json(beside / _FACTS, facts)
        files = {path.name: _checksum(path) for path in sorted(beside.iterdir())}
        manifest = {"format": FORMAT, "arithmetic": arithmetic(), "files": files}
        write_json(beside / _MANIFEST, sealed(manifest))
    return folder


def load_checkpoint(folder: str | Path, model: Any, optimizer: Any) -> dict[str, Any]:
    """Put a checkpoint into a model and its optimizer, and the global random state.

    The optimizer must know the model's parameters (``optimizer.init``). Everything is read and compared before
    anything is changed, and the state is loaded in place, so that a compiled step goes on from it.

    Args:
        folder: What :func:`save_checkpoint` wrote.
        model: A model of the same shape.
        optimizer: An optimizer of the same class.

    Returns:
        The facts that were saved with it.

    Raises:
        CheckpointError: If it is damaged, of another format, or of another model, with every path at fault.
    """
    folder = Path(folder)
    verify(folder)
    arrays: dict[str, Any] = {name: mx.load(str(folder / f"{name}.safetensors")) for name in _ARRAYS}
    reasons = Reasons()
    held = "x" if any(member.model_holds == "x" for member in members_of(optimizer)) else "y"
    _compare(reasons, f"{held}.safetensors", dict(tree_flatten(model.parameters())), arrays[held])
    _compare(reasons, "optimizer.safetensors", dict(tree_flatten(optimizer.state)), arrays["optimizer"])
    reasons.refuse_if_any(CheckpointError)
    mx.eval(arrays)
    load_state(optimizer, arrays["optimizer"])
    model.update(tree_unflatten(list(arrays[held].items())))
    set_random_key(arrays["random"]["key"])
    return read_facts(folder)


def load_state(optimizer: Any, arrays: Mapping[str, mx.array]) -> None:
    """Put arrays by path into an optimizer's state, in place, so that a compiled step goes on from them.

    Ours loads in place; MLX's own would get a new dict, and a compiled step would go on with the old one.
    """
    if hasattr(optimizer, "average"):
        optimizer.state = tree_unflatten(list(arrays.items()))
        return
    for member, start in _members(optimizer):
        member.check_state(tree_unflatten([(p[len(start) :], a) for p, a in arrays.items() if p.startswith(start)]))
    for path, array in arrays.items():
        *outer, last = path.split(".")
        node = optimizer.state
        for key in outer:
            node = node[int(key)] if isinstance(node, list) else node[key]
        node[int(last) if isinstance(node, list) else last] = array


def _members(optimizer: Any, start: str = "") -> Iterator[tuple[Any, str]]:
    """The schedule-free optimizers of a ``MultiOptimizer`` at any depth, with how paths of their state start."""
    for index, child in enumerate(getattr(optimizer, "optimizers", ())):
        here = f"{start}states.{index}."
        if hasattr(child, "average"):
            yield child, here
        yield from _members(child, here)


def read_facts(folder: Path) -> dict[str, Any]:
    """The facts of a checkpoint, without its arrays."""
    return dict(read_json(folder / _FACTS))


def saved_arithmetic(folder: Path) -> dict[str, Any]:
    """What the checkpoint's bits depended on where it was written."""
    return dict(read_json(folder / _MANIFEST)["arithmetic"])


def verify(folder: Path) -> None:
    """Check that a checkpoint is whole.

    Raises:
        CheckpointError: With every file that is missing or damaged, or the format that is not this one's.
    """
    try:
        manifest = read_json(folder / _MANIFEST)
        version = manifest["format"]
        files = {}
        if version == FORMAT:
            files = {str(name): str(checksum) for name, checksum in dict(manifest["files"]).items()}
            dict(manifest["arithmetic"])
            if not is_whole(manifest):
                raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        refuse("damaged", str(folder), f"has no readable {_MANIFEST}; it is no checkpoint of mufree's", CheckpointError)
    if version != FORMAT:
        refuse("format", str(folder), f"has format {version!r}; this version reads format {FORMAT}", CheckpointError)
    reasons = Reasons()
    for name in sorted({*files, *(f"{name}.safetensors" for name in _ARRAYS), _FACTS}):
        path = folder / name
        if reasons.attempt(plain_name, folder, name) is None:
            continue
        if name not in files:
            reasons.add("damaged", str(path), "is not a file that a checkpoint has")
        elif not path.is_file():
            reasons.add("damaged", str(path), "is missing; use another checkpoint")
        elif _checksum(path) != files[name]:
            reasons.add("damaged", str(path), "does not have the checksum in the manifest; use another checkpoint")
    reasons.refuse_if_any(CheckpointError)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder of them, oldest first, named by their update."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.name.isdecimal() and p.is_dir()), key=lambda p: int(p.name))


def _compare(reasons: Reasons, where: str, here: Mapping[str, mx.array], saved: Mapping[str, mx.array]) -> None:
    for path in sorted(here.keys() | saved.keys()):
        if path not in saved:
            reasons.add("missing", f"{where}: {path}", "is not in the checkpoint, which is another model's")
        elif path not in here:
            reasons.add("extra", f"{where}: {path}", "is not in the model; the checkpoint is another's")
        elif here[path].shape != saved[path].shape or here[path].dtype != saved[path].dtype:
            given = f"{list(saved[path].shape)} {saved[path].dtype}"
            wanted = f"{list(here[path].shape)} {here[path].dtype}"
            reasons.add("shape", f"{where}: {path}", f"is {given}, the model's is {wanted}; it is another model's")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
