"""Manifests: what they may name, and a seal that shows when one was changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, refuse

_SEAL = "checksum"


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content as JSON has it (tuples are lists, keys are text), with a checksum of it all."""
    plain = json.loads(json.dumps(content))
    return {**plain, _SEAL: _checksum(plain)}


def is_whole(content: Any) -> bool:
    """Whether what :func:`sealed` gave is unchanged."""
    return isinstance(content, Mapping) and content.get(_SEAL) == _checksum(content)


def _checksum(content: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != _SEAL}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def plain_name(folder: Path, name: Any) -> str:
    """A file's name from a manifest, which must lie in the manifest's own folder.

    Raises:
        CheckpointError: For anything else: a path with a separator, ``..``, a device, a number.
    """
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", "..") or "\0" in name:
        refuse("damaged", f"{folder}: {name!r}", "is not the name of a file in this folder", CheckpointError)
    return name
