"""Adapters on a model: attached by mlx-lm's own functions, with the refusals that it leaves out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters

from ...errors import Reasons, nearest, refuse
from ...files import read_json
from .settings import FinetuneConfig

LOST = "optimizer state, numbering, data order and random state begin anew (--resume goes on with all of them)"


def attach(config: FinetuneConfig, args: SimpleNamespace, model: Any) -> tuple[str, ...]:
    """Freeze a model and attach what is to be trained, as ``mlx_lm.lora`` does, with the same random numbers.

    Returns:
        What is to be said of it.

    Raises:
        Refused: For layers that the model does not have or that cannot be converted, and nothing to train.
    """
    mx.random.seed(config.seed)
    model.freeze()
    layers = len(model.layers)
    if config.num_layers > layers:
        message = f"{config.num_layers} is more than the model's {layers} layers; give at most that, or -1 for all"
        refuse("out_of_range", "num_layers", message)
    said: tuple[str, ...] = ()
    if config.fine_tune_type == "full":
        for layer in model.layers[-max(config.num_layers, 0) :]:
            layer.unfreeze()
        args.lora_parameters = None
    else:
        said = _check_keys(model, args.lora_parameters.get("keys"))
        try:
            linear_to_lora_layers(
                model, config.num_layers, args.lora_parameters, use_dora=config.fine_tune_type == "dora"
            )
        except (ValueError, KeyError, TypeError) as error:
            refuse(
                "unusable",
                "lora_parameters",
                f"mlx-lm cannot convert a layer: {_told(error)}",
            )
    trained = tree_flatten(model.trainable_parameters())
    if any(not mx.issubdtype(array.dtype, mx.floating) for _, array in trained):
        remedy = "give lora or dora, or a base that is not quantised"
        refuse("quantised", "fine_tune_type", f"{config.fine_tune_type!r} cannot train quantised weights; {remedy}")
    if not trained:
        message = "leaves nothing to train: no layer of this model takes it; give other keys, or another model"
        refuse("nothing_to_train", "fine_tune_type", f"{config.fine_tune_type!r} {message}")
    return said


def _check_keys(model: Any, keys: Any) -> tuple[str, ...]:
    """Refuse names of layers of which no layer has one, and say which are not there: mlx-lm passes over them."""
    if keys is None:
        return ()
    found = {name for layer in model.layers for name, _ in layer.named_modules()}
    found |= {name for name, _ in model.named_modules()}
    known = sorted(name for name in found if name and not name.startswith(("model", "layers")))
    if not found.intersection(keys):
        told = ", ".join(known[:12])
        refuse("unknown", "lora_parameters.keys", f"{list(keys)}: the model has none of them; it has {told} …")
    missing = [name for name in keys if name not in found]
    if not missing:
        return ()
    near = [match for name in missing if (match := nearest(name, known))]
    hint = f"; did you mean {' and '.join(near)}?" if near else ""
    return (f"lora_parameters.keys: the model has no {' and no '.join(missing)}, which mlx-lm passes over{hint}",)


def _told(error: Exception) -> str:
    return str(error.args[0] if error.args else error)


def start_from(config: FinetuneConfig, model: Any) -> tuple[str, ...]:
    """Load weights to start from; what is lost, and what does not go together, is said.

    Raises:
        Refused: If they cannot be read, or belong to another model.
    """
    path = Path(str(config.resume_adapter_file))
    if path.is_dir():
        refuse("unreadable", "resume_adapter_file", f"{path} is a folder; give its adapters.safetensors")
    try:
        saved: Any = mx.load(str(path))
    except (RuntimeError, ValueError, OSError) as error:
        refuse("unreadable", "resume_adapter_file", f"{path} cannot be read: {error}")
    if not isinstance(saved, dict):
        refuse("unreadable", "resume_adapter_file", f"{path} holds no arrays by name; give an adapter file")
    here = dict(tree_flatten(model.trainable_parameters()))
    reasons = Reasons()
    for name, array in sorted(saved.items()):
        if name not in here:
            message = "is not a parameter that is trained here; the adapter is another model's, or of other layers"
            reasons.add("extra", f"{path}: {name}", message)
        elif array.shape != here[name].shape:
            message = f"is {list(array.shape)}, here it is {list(here[name].shape)}: another model's, or another rank's"
            reasons.add("shape", f"{path}: {name}", message)
    if not saved:
        reasons.add("empty", str(path), "holds no weight; give an adapter file")
    reasons.refuse_if_any()
    model.load_weights(str(path), strict=False)
    said = [
        f"starts from the weights in {path} alone: {LOST}",
    ]
    new = sorted(here.keys() - saved.keys())
    if new:
        said.append(f"{len(new)} of {len(here)} trained arrays are not in {path} and start fresh, such as {new[0]}")
    return (*said, *_differences(config, path.parent / "adapter_config.json"))


def _differences(config: FinetuneConfig, described: Path) -> list[str]:
    """How the run that wrote an adapter differs in what the adapter's numbers mean."""
    try:
        before = read_json(described)
        was = (before.get("lora_parameters") or {}).get("scale")
    except (OSError, ValueError, AttributeError):
        return []
    said = []
    if before.get("model") != config.model:
        said.append(f"those weights were trained on {before.get('model')!r}; here the base is {config.model!r}")
    now = (config.lora_parameters or {"scale": 20.0})["scale"]
    if config.fine_tune_type != "full" and isinstance(was, int | float) and was != now:
        said.append(f"those weights were trained with scale {was:g}; here it is {now:g}, which multiplies them anew")
    return said


def load_trained(config: FinetuneConfig, args: SimpleNamespace, model: Any) -> tuple[str, ...]:  # noqa: ARG001
    """Attach finished adapters to be tested, as ``mlx_lm.lora --test`` does; an empty path tests the bare model.

    Raises:
        Refused: If they are missing or another model's.
    """
    if not config.adapter_path:
        return ()
    try:
        load_adapters(model, config.adapter_path)
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError) as error:
        refuse("unusable", "adapter_path", f"{config.adapter_path} cannot be attached to {config.model}: {error}")
    return ()


def validation_notes(config: FinetuneConfig, valid: Any) -> list[str]:
    """What a reader of the plan should know of the validations."""
    said = []
    batches = len(valid) // config.batch_size
    if 0 < config.val_batches < batches:
        said.append(
            f"each validation draws {config.val_batches} of {batches} batches anew, as in mlx-lm: losses differ by the "
            "draw too; val_batches -1 takes all"
        )
    return said
