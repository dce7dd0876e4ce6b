"""Model folders that stock mlx-lm and transformers read, and what such a model says.

Invariant: a folder appears whole or not at all; one that is replaced stays until the new one is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_lm.utils import load, save_config, save_model

from ..errors import refuse
from ..files import failing_as_os_error, nearest, whole_folder, write_json, write_text
from ..random_state import random_state_kept

if TYPE_CHECKING:
    import mlx.nn as nn

NOTES = "mufree.json"
"""Beside the model: the plan, and later the recipe, for whoever continues the training."""


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


def check_replaceable(folder: Path) -> None:
    """Refuse a place where :func:`export` would not write.

    Raises:
        Refused: If it exists and is not an earlier export, or lies in something that is no folder.
    """
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        refuse("unwritable", "export", f"{str(folder)[:80]!r} cannot be a folder ({error.args[-1]}); give another one")
    if folder.exists() and not (folder / NOTES).is_file():
        refuse("occupied", "export", f"{folder} exists and is not an export of mufree's; give another folder")
    if not nearest(folder).is_dir():
        refuse("unwritable", "export", f"{nearest(folder)} is no folder, so {folder} cannot be made; give another one")


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
