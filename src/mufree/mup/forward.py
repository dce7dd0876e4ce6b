"""Forward multipliers that a model has by its own configuration, as data.

A value here is absolute; divided by the base model's it is the A of the rules. Models are recognised by the module
and the name of their class, so that mlx-lm need not be imported.
"""

from __future__ import annotations

from typing import Any

from .walk import modules

READOUT = "readout"
# Pattern of the parameters (or the logits) -> attributes of the model, each with the power that it enters with.
_Places = dict[str, tuple[tuple[str, float], ...]]
_TOKENS = "*embed_tokens.weight"
_GRANITE: _Places = {_TOKENS: (("model.embedding_multiplier", 1.0),), READOUT: (("logits_scaling", -1.0),)}
_COHERE: _Places = {READOUT: (("model.args.logit_scale", 1.0),)}
_MINICPM: _Places = {
    _TOKENS: (("args.scale_emb", 1.0),),
    READOUT: (("args.dim_model_base", 1.0), ("args.hidden_size", -1.0)),
}
_ROOT: _Places = {_TOKENS: (("args.hidden_size", 0.5),)}
_FAMILIES: dict[str, _Places] = {
    "granite": _GRANITE,
    "granitemoe": _GRANITE,
    "granitemoehybrid": _GRANITE,
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "minicpm": _MINICPM,
    "minicpm3": _MINICPM,
    "gemma": _ROOT,
    "gemma2": _ROOT,
    "gemma3_text": _ROOT,
    "recurrent_gemma": _ROOT,
    "afmoe": _ROOT,
    "gear": {_TOKENS: (("model.embed_scale", 1.0),)},
    "gemma3n": {_TOKENS: (("hidden_size", 0.5),), "*per_layer_model_projection.weight": (("hidden_size", -0.5),)},
    "gemma4_text": {
        _TOKENS: (("model.embed_scale", 1.0),),
        "*per_layer_model_projection.weight": (("model.config.hidden_size", -0.5),),
    },
    "muse_glimmer": {READOUT: (("args.output_multiplier", 1.0),)},
    "phi3small": {
        _TOKENS: (("model.mup_embedding_multiplier", 1.0),),
        READOUT: (("mup_width_multiplier", -1.0),),
    },
}
_CLASSES = {"gemma3n": "LanguageModel"}
# A setting that switches the multiplier of the embedding off.
_SWITCHES = {"recurrent_gemma": "args.embeddings_scale_by_sqrt_dim", "afmoe": "args.mup_enabled"}


def forward_multipliers(model: object) -> dict[str, float]:
    """The forward multipliers in a model's configuration, by path pattern or ``readout`` for the logits.

    Args:
        model: Any model, tree or mapping of shapes; what is not recognised has none.
    """
    found: dict[str, float] = {}
    for _, module in modules(model):
        package, _, family = type(module).__module__.rpartition(".")
        known = package == "mlx_lm.models" and type(module).__name__ == _CLASSES.get(family, "Model")
        if not known or family not in _FAMILIES or not _switched_on(module, family):
            continue
        for place, factors in _FAMILIES[family].items():
            # The tied path of minicpm skips the division.
            if place == READOUT and family.startswith("minicpm") and "lm_head" not in module:
                continue
            value = 1.0
            for attribute, power in factors:
                value *= float(_attribute(module, attribute)) ** power
            found[place] = value
    return found


def _switched_on(module: Any, family: str) -> bool:
    return family not in _SWITCHES or bool(_attribute(module, _SWITCHES[family]))


def _attribute(owner: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        owner = getattr(owner, name)
    return owner
