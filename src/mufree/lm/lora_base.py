"""What a fine-tune's rate was tuned on, as base shapes of the model without its adapters.

Invariant: base and target are one family of one depth, vocabulary and head size, and differ in width alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from ..errors import Reasons, ShapeMismatch, refuse
from ..files import read_json
from ..mup import BaseShapes, make_base_shapes
from ..mup.forward import forward_multipliers
from ..mup.walk import leaves
from ..random_state import random_state_kept
from ..recipe import Recipe
from .building import base_shapes, build, completed

Base = Recipe | BaseShapes | Mapping[str, Any] | int | str | Path
"""A recipe, base shapes, a base config, a base width (``hidden_size``), or where a file or model folder is."""

_EQUAL = ("model_type", "num_hidden_layers", "vocab_size", "head_dim", "tie_word_embeddings")
_CONFIG = "config.json"
_REMEDY = "give a model folder, a config, a recipe or a .bsh file"


def lora_base(base: Base, config: Mapping[str, Any] | None) -> BaseShapes:
    """The base shapes that scales are relative to.

    Args:
        base: What the rate was tuned on: a :class:`~mufree.Recipe`, whose base model it is; base shapes; a base
            config; a ``hidden_size``; or a path: a model folder, its ``config.json``, a recipe or a ``.bsh`` file.
        config: The config of the model to fine-tune; only base shapes do without.

    Raises:
        Refused: If there is no such base, it is of another family, depth, vocabulary or head size, or its width does
            not divide; with every reason.
        ShapeMismatch: If the two models have other parameters.
    """
    if isinstance(base, str | Path):
        base = _read(Path(base))
    if isinstance(base, BaseShapes):
        return base
    if isinstance(base, Recipe) and not base.model_config:
        if not base.base_shapes:
            refuse("not_covered", "base", "the recipe holds neither a base config nor base shapes; give base shapes")
        return BaseShapes({path: tuple(shape) for path, shape in base.base_shapes.items()})
    if isinstance(base, bool) or not isinstance(base, Recipe | Mapping | int):
        refuse("type", "base", f"{base!r} is no recipe, base shapes, config, width or path")
    if config is None:
        refuse("missing", "config", "is needed to find the base model's sizes; give the model's config, or base shapes")
    if isinstance(base, int):
        return base_shapes(config, base)
    return _between(base.model_config if isinstance(base, Recipe) else base, config)


def config_of(model: Any) -> dict[str, Any] | None:
    """The config that a model of mlx-lm's keeps, or None for another model."""
    arguments = getattr(model, "args", None)
    return asdict(arguments) if is_dataclass(arguments) and not isinstance(arguments, type) else None


def _between(base: Mapping[str, Any], config: Mapping[str, Any]) -> BaseShapes:
    """Widths are the axes on which the two models differ."""
    _check_alike(completed(base), completed(config))
    with random_state_kept():
        narrow, wide = build(base), build(config)
    if {leaf.path: leaf.shape for leaf in leaves(narrow)} != {leaf.path: leaf.shape for leaf in leaves(wide)}:
        return make_base_shapes(narrow, wide)
    sizes = {leaf.path: leaf.shape for leaf in leaves(narrow)}
    return BaseShapes({path: (None,) * len(shape) for path, shape in sizes.items()}, sizes, forward_multipliers(narrow))


def _check_alike(base: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    reasons = Reasons()
    for name in _EQUAL:
        tuned, here = _field(base, name), _field(config, name)
        if tuned != here:
            reasons.add(
                "not_covered",
                f"base.{name}",
                f"is {tuned!r}, the model's {here!r}; a rate goes over from another width only, so give a base that "
                "differs in nothing else",
            )
    reasons.refuse_if_any(ShapeMismatch)


def _field(config: Mapping[str, Any], name: str) -> Any:
    if name == "head_dim" and config.get(name) is None:
        heads = config.get("num_attention_heads")
        return config["hidden_size"] / heads if heads and "hidden_size" in config else None
    return bool(config.get(name)) if name == "tie_word_embeddings" else config.get(name)


def _read(path: Path) -> Recipe | BaseShapes | Mapping[str, Any]:
    place = path / _CONFIG if path.is_dir() else path
    if not place.is_file():
        what = f"holds no {_CONFIG}" if path.is_dir() else "does not exist"
        refuse("missing", "base", f"{path} {what}; {_REMEDY}")
    if place.suffix == ".bsh":
        return BaseShapes.load(place)
    try:
        content = read_json(place)
    except (OSError, ValueError) as error:
        refuse("unreadable", "base", f"{place} is no JSON file that can be read: {error}; {_REMEDY}")
    if isinstance(content, dict) and "base_shapes" in content:
        return Recipe.from_mapping(content, str(place))
    if not isinstance(content, dict) or "model_type" not in content:
        refuse("unreadable", "base", f"{place} is neither a model's config nor a recipe of mufree's; {_REMEDY}")
    return content
