"""How a model config grows in width. Pure Python: a config is a mapping as in a model folder's ``config.json``.

Invariants: the head size stays fixed (the number of heads is the width), every width-like field keeps its ratio to
``hidden_size``, and nothing is rounded: a width at which a field would not be whole is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ..errors import Reasons, refuse

Config = dict[str, Any]

WIDTHS = ("intermediate_size", "num_attention_heads", "num_key_value_heads")
"""The fields that grow with ``hidden_size``, for the architectures in :data:`ARCHITECTURES`."""

ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "hidden_act": "silu",
    },
    "granite": {
        "architectures": ["GraniteForCausalLM"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
    },
    "gemma": {
        "architectures": ["GemmaForCausalLM"],
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        # mlx-lm's is the exact one; transformers takes the word "gelu" for the approximation.
        "hidden_act": "gelu_python",
    },
}
"""By model type: the fields of a new model that are neither a size nor asked for."""

MULTIPLIERS: Mapping[str, tuple[str, ...]] = {"granite": ("logits_scaling",)}
"""By model type: the fields by which the logits are divided, which grow with ``hidden_size`` (the head's 1/m)."""

LOGITS_WIDTH = 32
"""The width at which a new granite divides its logits by 1: with MLX's initialisers they then start below 1."""

FEED_FORWARD = 4
"""``intermediate_size`` of a new model, as a multiple of ``hidden_size``."""


def new_config(
    model_type: str,
    *,
    width: int,
    layers: int,
    head_dim: int,
    vocab_size: int,
    max_length: int,
    fields: Mapping[str, Any] | None = None,
) -> Config:
    """The config of a new model.

    Args:
        model_type: One of :data:`ARCHITECTURES`.
        width: ``hidden_size``.
        layers: Number of blocks.
        head_dim: Size of an attention head; must divide ``width``.
        vocab_size: Number of token ids.
        max_length: Longest sequence, in tokens.
        fields: Further fields of the architecture's config, which win over the defaults.

    Raises:
        Refused: For an unknown architecture, a field it does not have, or a width that is not a whole number of heads,
            with every reason.
    """
    if model_type not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        refuse("unknown", "model_type", f"{model_type!r} is not an architecture built here; choose one of: {known}")
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "max_position_embeddings": max_length,
    }
    given = dict(fields or {})
    reasons = Reasons()
    _check_fields(reasons, model_type, given, sizes)
    if width % head_dim:
        low = width - width % head_dim
        near = f"{low} or {low + head_dim}" if low else f"{head_dim}"
        reasons.add("indivisible", "width", f"{width} is not a whole number of heads of size {head_dim}; give {near}")
    reasons.refuse_if_any()
    heads = given.get("num_attention_heads", width // head_dim)
    return {
        "model_type": model_type,
        "intermediate_size": FEED_FORWARD * width,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        **sizes,
        **ARCHITECTURES[model_type],
        **_multipliers(model_type, width, head_dim),
        **given,
    }


def _multipliers(model_type: str, width: int, head_dim: int) -> Config:
    """Granite's multipliers that depend on a size: attention by 1/d, logits in proportion to the width."""
    if model_type != "granite":
        return {}
    return {"attention_multiplier": 1 / head_dim, "logits_scaling": width / LOGITS_WIDTH}


def _check_fields(reasons: Reasons, model_type: str, given: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    known = known_fields(model_type)
    for name, value in given.items():
        where = f"model.{name}"
        if name not in known:
            reasons.add("unknown", where, f"{model_type} has no such field; it has: {', '.join(sorted(known))}")
        elif name in sizes and value != sizes[name]:
            reasons.add("contradiction", where, f"{value!r} is not the {sizes[name]} of the options; leave it out")
        elif name == "model_type" and value != model_type:
            reasons.add("contradiction", where, f"{value!r} is not {model_type!r}; give the option model_type")
        elif name in WIDTHS and not (type(value) is int and value > 0):
            reasons.add("out_of_range", where, f"{value!r} is not a positive whole number")
    heads, shared = given.get("num_attention_heads"), given.get("num_key_value_heads")
    heads = heads if heads is not None else sizes["hidden_size"] // sizes["head_dim"]
    if not reasons.found and shared and heads % shared:
        reasons.add(
            "indivisible",
            "model.num_key_value_heads",
            f"{shared} does not divide the {heads} query heads; give a divisor",
        )


def known_fields(model_type: str) -> set[str]:
    """The config fields that mlx-lm's model of this type reads, and those that only transformers needs."""
    from .building import argument_names

    return argument_names(model_type) | set(ARCHITECTURES.get(model_type, ()))


def at_width(config: Mapping[str, Any], width: int) -> Config:
    """The same model at another width.

    ``hidden_size`` becomes ``width``; the feed-forward size and the numbers of heads keep their ratio to it; the size
    of a head, depth and vocabulary stay. A multiplier that divides the logits (:data:`MULTIPLIERS`) grows along and so
    gives the head its 1/m; every other one is left alone.

    Args:
        config: A model config with at least ``hidden_size``.
        width: The new ``hidden_size``, a positive whole number.

    Returns:
        A new config; ``config`` is untouched.

    Raises:
        Refused: If a field would not be a whole number at that width, with every such field.

    Example:
        >>> small = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256}
        >>> at_width(small, 256)["num_attention_heads"]
        16
    """
    reasons = Reasons()
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        refuse("out_of_range", "width", f"{width!r} is not a positive whole number")
    ratio = Fraction(width, config["hidden_size"])
    grown = dict(config, hidden_size=width)
    if "head_dim" not in config or config["head_dim"] is None:
        grown["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    for name in WIDTHS:
        if config.get(name) is None:
            continue
        size = config[name] * ratio
        if size.denominator != 1:
            step = (Fraction(config["hidden_size"], config[name])).numerator
            reasons.add(
                "indivisible",
                "width",
                f"{width} makes {name} {float(size):g} (it is {config[name]} at {config['hidden_size']}); "
                f"give a multiple of {step}",
            )
        grown[name] = int(size)
    for name in MULTIPLIERS.get(config.get("model_type", ""), ()):
        if name in config:
            grown[name] = float(config[name] * ratio)
    reasons.refuse_if_any()
    return grown
