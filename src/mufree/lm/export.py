"""Model folders that stock mlx-lm and transformers read, and what such a model says.

Invariant: a folder appears whole or not at all; one that is replaced stays until the new one is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_lm.utils import load, save_config, save_model

from ..errors import refuse
from ..files import failing_as_os_error, nearest, read_json, whole_folder, within, write_json, write_text
from ..random_state import random_state_kept

if TYPE_CHECKING:
    import mlx.nn as nn

NOTES = "mufree.json"
"""Beside the model: the plan, and later the recipe, for whoever continues the training."""


_FILES = (
    "README.md", "config.json", NOTES, "model*.safetensors", "model.safetensors.index.json",
    "*token*", "vocab*", "merges.txt", "*.model", "*.jinja", "chat_template*", "additional_chat_templates",
    "generation_config.json", "*.py",
)  # fmt: skip
"""What an export's folder holds: its own files, the tokenizer's, and what mlx-lm takes over from a base model."""


def export(
    folder: str | Path,
    model: nn.Module,
    config: Mapping[str, Any],
    tokenizer: Any,
    *,
    notes: Mapping[str, Any] | None = None,
    card: str = "",
) -> Path:
    """Write the weights that ``model`` holds now as a folder for ``mlx_lm.load`` and ``transformers``.

    To ship the average ``x``, call it inside ``with optimizer.averaged(model):``.

    Args:
        folder: Where to write; an earlier export there is replaced once the new one is complete.
        model: A model built by :func:`mufree.lm.build`.
        config: Its config.
        tokenizer: A transformers tokenizer.
        notes: What to keep as ``mufree.json``: the plan, the update, the losses.
        card: The model card's Markdown; without one none is written.

    Returns:
        The folder.

    Raises:
        Refused: If ``folder`` exists and is not an earlier export.
        OSError: If it cannot be written; an earlier export is then still there.
    """
    folder = Path(folder)
    check_replaceable(folder)
    with whole_folder(folder) as beside:
        with failing_as_os_error(folder):
            save_model(beside, model)
        tokenizer.save_pretrained(beside)
        save_config({**config, "eos_token_id": tokenizer.eos_token_id, "dtype": _dtype(model)}, beside / "config.json")
        write_json(beside / NOTES, dict(notes or {}))
        if card:
            write_text(beside / "README.md", card)
    return folder


def read_notes(folder: Path) -> dict[str, Any]:
    """What an export says of itself; nothing where it cannot be read."""
    try:
        return dict(read_json(folder / NOTES))
    except (OSError, ValueError, TypeError):
        return {}


def check_replaceable(folder: Path, sources: Sequence[Path] = ()) -> None:
    """Refuse a place where :func:`export` would not write.

    Args:
        folder: The place.
        sources: What the export is made from, which must not go with it.

    Raises:
        Refused: If it exists and is not an earlier export, holds something besides, or lies in something that is no
            folder.
    """
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        refuse("unwritable", "export", f"{str(folder)[:80]!r} cannot be a folder ({error.args[-1]}); give another one")
    if folder.exists() and not (folder / NOTES).is_file():
        refuse("occupied", "export", f"{folder} exists and is not an export of mufree's; give another folder")
    if folder.exists() and any(within(source, folder) for source in sources):
        message = f"{folder} is, or holds, what the export is made from, and would be replaced; give another folder"
        refuse("occupied", "export", message)
    others = sorted(path.name for path in folder.iterdir() if not _ours(path.name)) if folder.exists() else ()
    if others:
        message = f"{folder} holds {', '.join(others)} besides an export, which would be replaced; move that away"
        refuse("occupied", "export", message)
    if not nearest(folder).is_dir():
        refuse("unwritable", "export", f"{nearest(folder)} is no folder, so {folder} cannot be made; give another one")


def _ours(name: str) -> bool:
    """Whether an export may have a file of this name; what starts with a dot is nobody's work."""
    return name.startswith(".") or any(fnmatchcase(name, pattern) for pattern in _FILES)


def sample(folder: str | Path, prompt: str, *, tokens: int = 160, temperature: float = 0.7, seed: int = 0) -> str:
    """What an exported model says, read back by stock ``mlx_lm.load`` and ``mlx_lm.generate``.

    The global random state is as before afterwards.

    Args:
        folder: A model folder.
        prompt: Text to go on from; one without tokens goes on from the end token.
        tokens: How many tokens at most.
        temperature: Softmax temperature of the sampling.
        seed: Of the sampling.

    Returns:
        The prompt and its continuation.
    """
    import mlx.core as mx
    from mlx_lm import generate
    from mlx_lm.sample_utils import make_sampler

    with random_state_kept():
        mx.random.seed(seed)
        model, tokenizer = load(str(folder))[:2]
        ids = tokenizer.encode(prompt) or [tokenizer.eos_token_id]
        return prompt + generate(model, tokenizer, ids, max_tokens=tokens, sampler=make_sampler(temp=temperature))


def _dtype(model: nn.Module) -> str:
    from mlx.utils import tree_flatten

    return str(tree_flatten(model.parameters())[0][1].dtype).removeprefix("mlx.core.")
