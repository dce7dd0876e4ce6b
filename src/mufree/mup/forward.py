"""Forward multipliers that a model has by its own configuration, as data.

A value here is absolute; divided by the base model's it is the A of the rules. Models are recognised by the module
and the name of their class, so that mlx-lm need not be imported.
"""

from __future__ import annotations

from .walk import modules

# Place -> attributes of the model and the power that each enters with, by module of the class `Model`.
_Places = dict[str, tuple[tuple[str, float], ...]]
_GRANITE: _Places = {"embedding": (("model.embedding_multiplier", 1.0),), "readout": (("logits_scaling", -1.0),)}
_COHERE: _Places = {"readout": (("model.args.logit_scale", 1.0),)}
_MINICPM: _Places = {
    "embedding": (("args.scale_emb", 1.0),),
    # The tied path of minicpm skips the division.
    "untied_readout": (("args.dim_model_base", 1.0), ("args.hidden_size", -1.0)),
}
_GEMMA: _Places = {"embedding": (("args.hidden_size", 0.5),)}
_FAMILIES: dict[str, _Places] = {
    "granite": _GRANITE,
    "granitemoe": _GRANITE,
    "granitemoehybrid": _GRANITE,
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "minicpm": _MINICPM,
    "minicpm3": _MINICPM,
    "gemma": _GEMMA,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
}


def forward_multipliers(model: object) -> dict[str, float]:
    """The forward multipliers in a model's configuration, by place: ``embedding``, ``readout``.

    Args:
        model: Any model, tree or mapping of shapes; what is not recognised has none.
    """
    for _, module in modules(model):
        package, _, family = type(module).__module__.rpartition(".")
        if package != "mlx_lm.models" or type(module).__name__ != "Model" or family not in _FAMILIES:
            continue
        found = {}
        for place, factors in _FAMILIES[family].items():
            if place == "untied_readout" and "lm_head" not in module:
                continue
            value = 1.0
            for attribute, power in factors:
                value *= float(_attribute(module, attribute)) ** power
            found[place.removeprefix("untied_")] = value
        return found
    return {}


def _attribute(owner: object, dotted: str) -> float:
    for name in dotted.split("."):
        owner = getattr(owner, name)
    return owner  # type: ignore[return-value]
