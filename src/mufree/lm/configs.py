"""How a model config grows in width. Pure Python: a config is a mapping as in a model folder's ``config.json``.

Invariants: the head size stays fixed (the number of heads is the width), every width-like field keeps its ratio to
``hidden_size``, and nothing is rounded: a width at which a field would not be whole is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ..errors import Reasons, refuse
from .fields import check_fields

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
    written = {
        "model_type": model_type,
        "intermediate_size": FEED_FORWARD * width,
        "num_attention_heads": width // head_dim,
        "num_key_value_heads": width // head_dim,
        **sizes,
        **ARCHITECTURES[model_type],
        **_multipliers(model_type, width, head_dim),
    }
    _check(model_type, given, written, sizes)
    if "num_attention_heads" in given:
        written["num_key_value_heads"] = given["num_attention_heads"]
    return {**written, **given}


def _multipliers(model_type: str, width: int, head_dim: int) -> Config:
    """Granite's multipliers that depend on a size: attention by 1/d, logits in proportion to the width."""
    if model_type != "granite":
        return {}
    return {"attention_multiplier": 1 / head_dim, "logits_scaling": width / LOGITS_WIDTH}


def _check(model_type: str, given: Config, written: Config, sizes: Config) -> None:
    types, width, head_dim = field_types(model_type), sizes["hidden_size"], sizes["head_dim"]
    reasons = Reasons()
    check_fields(reasons, given, types=types, written=written, fixed=sizes | {"model_type": model_type})
    if head_dim % 2:
        message = f"{head_dim} is odd, and rotary positions turn pairs; give {head_dim + 1}"
        reasons.add("out_of_range", "head_dim", message)
    if width % head_dim:
        low = width - width % head_dim
        near = f"{low} or {low + head_dim}" if low else f"{head_dim}"
        reasons.add("indivisible", "width", f"{width} is not a whole number of heads of size {head_dim}; give {near}")
    if not reasons.found:
        _check_heads(reasons, given, width // head_dim, free="head_dim" in types)
    reasons.refuse_if_any()


def _check_heads(reasons: Reasons, given: Mapping[str, Any], wanted: int, *, free: bool) -> None:
    """Heads that the model can have; ``free`` if it takes the size of a head from the config, not from their number."""
    heads = given.get("num_attention_heads", wanted)
    shared = given.get("num_key_value_heads", heads)
    if heads != wanted and not free:
        where = "model.num_attention_heads"
        reasons.add("contradiction", where, f"{heads} is not the {wanted} that width and head_dim give; leave it out")
    if heads % shared:
        message = f"{shared} does not divide the {heads} query heads; give a divisor"
        reasons.add("indivisible", "model.num_key_value_heads", message)


def known_fields(model_type: str) -> set[str]:
    """The config fields that mlx-lm's model of this type reads, and those that only transformers needs."""
    return set(field_types(model_type)) | set(ARCHITECTURES.get(model_type, ()))


def field_types(model_type: str) -> dict[str, Any]:
    """The type of every config field that mlx-lm's model of this type reads."""
    from .building import argument_types

    return argument_types(model_type)


def at_width(config: Mapping[str, Any], width: int) -> Config:
    """The same model at another width.

    ``hidden_size`` becomes ``width``; the feed-forward size and the numbers of heads keep their ratio to it; the size
    of a head, depth and vocabulary stay. A multiplier that divides the logits (:data:`MULTIPLIERS`) grows along and so
    gives the head its 1/m; every other one is left alone.

    Args:
        config: A config of one of :data:`ARCHITECTURES`, with at least ``hidden_size`` and ``num_attention_heads``.
        width: The new ``hidden_size``, a positive whole number.

    Returns:
        A new config; ``config`` is untouched.

    Raises:
        Refused: If a field would not be a whole number at that width, with every such field; for a config that lacks
            one, and for another architecture, whose widths may have other names.

    Example:
        >>> from mufree.lm import at_width
        >>> small = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256}
        >>> at_width(small, 256)["num_attention_heads"]
        16
    """
    _check_growable(config, width)
    reasons = Reasons()
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


def _check_growable(config: Mapping[str, Any], width: int) -> None:
    reasons = Reasons()
    if not _is_size(width):
        reasons.add("out_of_range", "width", f"{width!r} is not a positive whole number")
    model_type = config.get("model_type", "llama")
    if model_type not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        reasons.add(
            "unknown", "model_type", f"which fields of {model_type!r} are widths is not known, only those of {known}; "
            "build two models and give them to make_base_shapes",
        )  # fmt: skip
        reasons.refuse_if_any()
    for name in ("hidden_size", *WIDTHS):
        needed = name in ("hidden_size", "num_attention_heads")
        if (needed or config.get(name) is not None) and not _is_size(config.get(name)):
            reasons.add("out_of_range", f"config.{name}", f"{config.get(name)!r} is not a positive whole number")
    reasons.refuse_if_any()


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0
