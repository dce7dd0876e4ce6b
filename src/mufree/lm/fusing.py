"""A fine-tune's adapters, fused into their base model by mlx-lm's own parts.

Invariant: only the base model and the adapters are read, so that no optimizer state can go along.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx
from mlx.utils import tree_unflatten
from mlx_lm.utils import dequantize_model, load, save

from ..errors import Reasons, refuse
from ..files import failing_as_os_error, read_json, there, whole_folder, write_json
from ..random_state import random_state_kept
from .export import NOTES, check_replaceable
from .tuning.folder import ADAPTERS as WEIGHTS
from .tuning.folder import AT_Y, CONFIG
from .tuning.folder import NOTES as OURS


def is_adapter_folder(folder: Path) -> bool:
    """Whether a folder is what a fine-tune wrote, whole or not."""
    return there(folder) and ((folder / CONFIG).is_file() or (folder / WEIGHTS).is_file())


def export_adapters(
    adapters: str | Path,
    folder: str | Path,
    *,
    weights: Literal["x", "y"] = "x",
    model: str | Path | None = None,
    dequantize: bool = False,
) -> Path:
    """Fuse adapters, or load fully tuned layers, into their base model, and write what ``mlx_lm.load`` reads.

    Args:
        adapters: The folder of a fine-tune by ``mufree lora`` or ``mlx_lm.lora``.
        folder: Where to write; an earlier export there is replaced once the new one is complete.
        weights: ``"x"``, the weights that the run saves, the average for a schedule-free one; ``"y"``, where
            gradients were taken, which a run keeps only where it was the better one.
        model: The base model, a folder or a repository; by default the one that the adapters name.
        dequantize: Write a quantised base in plain weights. Without it, fused layers are quantised again.

    Returns:
        The folder written.

    Raises:
        Refused: If it is no adapter folder, ``y`` was not kept, the base cannot be loaded or is another model, or
            ``folder`` exists and is no export.
        OSError: If it cannot be written.
    """
    adapters, folder = Path(adapters), Path(folder)
    described = _described(adapters)
    chosen = _chosen(adapters, described, weights)
    base = str(model or described["model"])
    check_replaceable(folder, (adapters, chosen, Path(base)))
    with random_state_kept():  # mlx-lm draws the factors before it loads them
        fused, tokenizer, config = _attached(base, chosen)
        _fuse(fused, dequantize=dequantize)
        if dequantize:
            fused = dequantize_model(fused)
            config = {name: value for name, value in config.items() if not name.startswith("quantization")}
    notes = {"sequence": weights, "base": base, "adapters": described}
    with whole_folder(folder) as beside:
        with failing_as_os_error(folder):
            save(beside, base, fused, tokenizer, config, donate_model=False)
        write_json(beside / NOTES, notes)
    return folder


def _described(adapters: Path) -> dict[str, Any]:
    reasons = Reasons()
    for name in (CONFIG, WEIGHTS):
        if not (adapters / name).is_file():
            reasons.add("missing", str(adapters), f"holds no {name}; give the adapter_path of a fine-tune")
    reasons.refuse_if_any()
    path = adapters / CONFIG
    try:
        described = read_json(path)
    except (OSError, ValueError) as error:
        refuse("unreadable", str(path), f"is no JSON file that can be read: {error}")
    if not isinstance(described, dict):
        refuse("unreadable", str(path), "does not describe adapters; give the adapter_path of a fine-tune")
    if not isinstance(described.get("model"), str):
        described["model"] = ""
    return described


def _chosen(adapters: Path, described: Mapping[str, Any], weights: str) -> Path:
    """The folder with the sequence asked for. mlx-lm's own runs say nothing of sequences, and have one."""
    if weights not in ("x", "y"):
        refuse("unknown", "weights", f"{weights!r}; give 'x' or 'y'")
    ours = described.get(OURS)
    sequence = ours.get("sequence", "x") if isinstance(ours, dict) else "x"
    if sequence == weights:
        return adapters
    kept = adapters / AT_Y
    if weights == "y" and (kept / CONFIG).is_file() and (kept / WEIGHTS).is_file():
        return kept
    if weights == "x":
        message = f"{adapters} holds y alone; export the folder that it lies in, or give --weights y"
    else:
        message = f"{adapters} keeps no y: a run keeps it only where it is better than the average x. Export x"
    return refuse("not_kept", "weights", message)


def _attached(base: str, adapters: Path) -> tuple[Any, Any, dict[str, Any]]:
    """The base model with the adapters on it, as ``mlx_lm.fuse`` has it."""
    if not base:
        refuse("missing", "model", f"{adapters / CONFIG} names no base model; give it with --model")
    if base.startswith((".", "/", "~")) and not Path(base).exists():
        refuse("missing", "model", f"{base}, the base that {adapters} names, does not exist; give it with --model")
    _check_numbers(adapters / WEIGHTS)
    try:
        model, tokenizer, config = load(base, adapter_path=str(adapters), return_config=True)
    except Exception as error:  # mlx-lm, the hub and safetensors raise what they like
        told = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        refuse(
            "unusable", "model", f"{base} with {adapters} on it cannot be loaded, {told}; give its base with --model"
        )
    return model, tokenizer, dict(config)


def _check_numbers(path: Path) -> None:
    """Refuse weights that no training leaves behind; what cannot be read at all is told by mlx-lm."""
    try:
        arrays = cast(dict[str, mx.array], mx.load(str(path)))
    except (RuntimeError, ValueError, OSError):
        return
    reasons = Reasons()
    for name, array in sorted(arrays.items()):
        if not mx.issubdtype(array.dtype, mx.floating):
            reasons.add("type", f"{path}: {name}", f"is {array.dtype}, which is no floating type; give another copy")
        elif not mx.all(mx.isfinite(array)).item():
            reasons.add("not_finite", f"{path}: {name}", "holds an infinity or what is no number; give another copy")
    reasons.refuse_if_any()


def _fuse(model: Any, *, dequantize: bool) -> None:
    layers = [(path, module) for path, module in model.named_modules() if hasattr(module, "fuse")]
    if layers:
        model.update_modules(tree_unflatten([(path, layer.fuse(dequantize=dequantize)) for path, layer in layers]))
