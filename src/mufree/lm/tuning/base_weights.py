"""A fingerprint of a model's weights, taken from its files at little cost however large they are. Pure Python.

It depends on neither the path nor the times of the files, nor on how the weights are spread over them.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

_TENSORS = 512
"""Of how many tensors bytes are read, spread evenly over the names; of all others name, type and shape."""
_BYTES = 64
"""From the middle of a tensor, and as many from its end."""


def weights_digest(model: str) -> str | None:
    """A hash (16 hex digits) of every tensor's name, type and shape, and of bytes of at most 512 of them.

    Args:
        model: A folder, or the hub's name of one that was loaded before.

    Returns:
        The hash, or None where there are no files that can be read this way.
    """
    try:
        folder = Path(model) if Path(model).exists() else _from_hub(model)
        tensors = [tensor for path in folder.glob("model*.safetensors") for tensor in _tensors(path)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not tensors:
        return None
    tensors.sort(key=lambda tensor: tensor[0])
    found = hashlib.sha256(json.dumps([tensor[:3] for tensor in tensors]).encode())
    for _, _, _, path, start, end in tensors[:: -(-len(tensors) // _TENSORS)]:
        with path.open("rb", buffering=0) as file:
            for place in (start + (end - start) // 2, max(start, end - _BYTES)):
                found.update(os.pread(file.fileno(), min(_BYTES, end - place), place))
    return found.hexdigest()[:16]


def _from_hub(name: str) -> Path:
    from mlx_lm.utils import hf_repo_to_path

    return Path(hf_repo_to_path(name))


def _tensors(path: Path) -> list[tuple[str, str, list[int], Path, int, int]]:
    """Name, type, shape and place of every tensor of a safetensors file, from its header."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return [
        (name, one["dtype"], one["shape"], path, *(8 + size + offset for offset in one["data_offsets"]))
        for name, one in header.items()
    ]
