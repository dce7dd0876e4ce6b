"""Fingerprints of a model's weights and tokenizer, taken from files at little cost however large.

They depend on neither the path nor the times of the files, nor on how the weights are spread over them.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

_TENSORS = 2048
"""Of how many tensors bytes are read, drawn by name; of all others name, type and shape."""
_BYTES = 128
"""From the middle of a tensor on."""

_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja")
_TOKENIZER_KEYS = ("chat_template", "tokenizer_class", "add_bos_token", "add_eos_token", "bos_token", "eos_token")


def weights_digest(model: str) -> str | None:
    """A hash (16 hex digits) of every tensor's name, type and shape, and of bytes of at most 2048 of them.

    Args:
        model: A folder, or the hub's name of one that was loaded before.

    Returns:
        The hash, or None where there are no files that can be read this way.
    """
    try:
        tensors = [tensor for path in _folder(model).glob("model*.safetensors") for tensor in _tensors(path)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not tensors:
        return None
    tensors.sort(key=lambda tensor: tensor[0])
    found = hashlib.sha256(json.dumps([tensor[:3] for tensor in tensors]).encode())
    with ExitStack() as stack:
        files: dict[Path, Any] = {}
        # By a hash: every n-th name may be the same part of each layer, and that one which nobody tunes.
        drawn = sorted(tensors, key=lambda tensor: hashlib.sha256(tensor[0].encode()).digest())[:_TENSORS]
        for _, _, _, path, start, end in drawn:
            file = files.get(path) or files.setdefault(path, stack.enter_context(path.open("rb", buffering=0)))
            place = start + (end - start) // 2
            found.update(os.pread(file.fileno(), min(_BYTES, end - place), place))
    return found.hexdigest()[:16]


def tokenizer_digest(model: str) -> str | None:
    """A hash (16 hex digits) of a tokenizer's files and its chat template; None where there are none.

    Args:
        model: A folder, or the hub's name of one that was loaded before.
    """
    found, any_file = hashlib.sha256(), False
    try:
        folder = _folder(model)
        for path in (folder / name for name in _TOKENIZER):
            if path.is_file():
                any_file = True
                found.update(path.name.encode() + path.read_bytes())
        config = folder / "tokenizer_config.json"
        if config.is_file():
            content = json.loads(config.read_text(encoding="utf-8"))
            read = {name: content.get(name) for name in _TOKENIZER_KEYS}
            found.update(json.dumps(read, sort_keys=True).encode())
    except (OSError, ValueError, AttributeError):
        return None
    return found.hexdigest()[:16] if any_file else None


def _folder(model: str) -> Path:
    from mlx_lm.utils import hf_repo_to_path

    return Path(model) if Path(model).exists() else Path(hf_repo_to_path(model))


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
