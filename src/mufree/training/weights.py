"""Weights alone, as the start of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from ..errors import CheckpointError, Reasons, refuse

LOST = (
    "started from the weights in {where} alone: the optimizer's state (z, v and the average's weights), the random "
    "state, the position in the data and the numbering are lost; the average starts anew and the warmup runs again"
)
_NAMES = ("x.safetensors", "model*.safetensors")
"""In a checkpoint, and in an export."""


def load_weights(model: Any, where: str) -> tuple[str, ...]:
    """Put weights into a model.

    Args:
        model: The model.
        where: An export's or a checkpoint's folder (the average ``x`` of either), or a ``.safetensors`` file.

    Returns:
        What is lost, in a sentence.

    Raises:
        Refused: If there is nothing to read.
        CheckpointError: For weights of another model, with every path.
    """
    arrays: dict[str, Any] = {}
    for file in _files(Path(where)):
        _check_whole(file)
        try:
            arrays.update(dict(mx.load(str(file), format="safetensors")))  # type: ignore[arg-type]
        except RuntimeError as error:  # another type of numbers, offsets that do not fit
            refuse("damaged", "weights", f"{file} cannot be read: {error}; give another copy", CheckpointError)
    here = dict(tree_flatten(model.parameters()))
    reasons = Reasons()
    for path in sorted(here.keys() | arrays.keys()):
        if path not in arrays:
            reasons.add("missing", f"weights: {path}", f"is not in {where}, which is another model's")
        elif path not in here:
            reasons.add("extra", f"weights: {path}", f"is in {where} and not in the model; it is another's")
        elif arrays[path].shape != here[path].shape:
            given, wanted = list(arrays[path].shape), list(here[path].shape)
            reasons.add("shape", f"weights: {path}", f"is {given}, the model's is {wanted}; it is another model's")
        elif not mx.issubdtype(arrays[path].dtype, mx.floating):
            remedy = "give weights that are not quantised or packed"
            reasons.add("type", f"weights: {path}", f"is {arrays[path].dtype}, which is no floating type; {remedy}")
    reasons.refuse_if_any(CheckpointError)
    same = {path: array.astype(here[path].dtype) for path, array in arrays.items()}
    mx.eval(same)
    model.update(tree_unflatten(list(same.items())))
    return (LOST.format(where=where),)


def _check_whole(file: Path) -> None:
    """Look at a safetensors file's header: 8 bytes of its length, then JSON with where each array ends.

    Raises:
        CheckpointError: If it is none, or the file is not as long as it says.
    """
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(min(length, file.stat().st_size)))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        whole = file.stat().st_size == 8 + length + max(ends, default=0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        whole = False
    if not whole:
        refuse("damaged", "weights", f"{file} is no whole safetensors file; give another copy", CheckpointError)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = next((files for files in (sorted(path.glob(name)) for name in _NAMES) if files), [])
    if not found:
        message = f"{path} holds no weights; give an export, a checkpoint's folder or a .safetensors file"
        refuse("missing", "weights", message)
    return found
