"""What a manifest may name: files of its own folder, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import CheckpointError, refuse


def plain_name(folder: Path, name: Any) -> str:
    """A file's name from a manifest, which must lie in the manifest's own folder.

    Raises:
        CheckpointError: For anything else: a path with a separator, ``..``, a device, a number.
    """
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".", "..") or "\0" in name:
        refuse("damaged", f"{folder}: {name!r}", "is not the name of a file in this folder", CheckpointError)
    return name
