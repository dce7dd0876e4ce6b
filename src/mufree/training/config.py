"""The settings of a pretraining run: each option once, for the command line, the YAML file and Python. Pure Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from ..errors import Reasons, Refused

Decay = Literal["independent", "standard", "none"]


def _option(default: Any, text: str, *, group: str, low: float | None = None, above: float | None = None) -> Any:
    """One option: its default, its help, its group, and the interval it lies in (``low`` ≤ value, or ``above`` <)."""
    metadata = {"help": text, "group": group, "low": low, "above": above}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """What ``mufree pretrain`` trains, on what, how, for how long, and where it writes.

    Every field is an option of the command line (``base_width`` is ``--base-width``) and a key of the YAML file; the
    help of each is in :func:`option_help`. Nothing about the end of the run changes an update, so that a run can
    always go on.

    Raises:
        Refused: For values outside their range, all at once.
    """

    width: int = _option(128, "hidden size of the model to train", group="model", low=1)
    base_width: int = _option(64, "hidden size at which the learning rate was tuned", group="model", low=1)
    layers: int = _option(2, "number of blocks", group="model", low=1)
    head_dim: int = _option(16, "size of an attention head; the number of heads is the width", group="model", low=1)
    model_type: str = _option("llama", "architecture, by mlx-lm's name", group="model")
    model: Mapping[str, Any] = _option({}, "further fields of the architecture's config (YAML only)", group="model")
    recipe: Mapping[str, Any] = _option({}, "content of the recipe that the settings come from", group="model")
    zero_readout: bool = _option(False, "start the output head at zero", group="model")
    zero_query: bool = _option(False, "start the attention's queries at zero", group="model")
    seed: int = _option(0, "seed of the initialisation and of the order of the data", group="model", low=0)

    data: str | None = _option(None, "text file, folder of them, or .jsonl with a text field", group="data")
    tokenizer: str | None = _option(None, "local tokenizer folder (default: bytes)", group="data")
    seq_length: int = _option(64, "tokens a sequence", group="data", low=1)
    batch_size: int = _option(16, "sequences a micro-batch", group="data", low=1)
    accumulation: int = _option(1, "micro-batches an update", group="data", low=1)
    eval_batches: int = _option(8, "micro-batches of a validation", group="data", low=1)

    lr: float = _option(
        2.0**-6, "learning rate at the base width, constant after the warmup", group="optimizer", above=0
    )
    beta1: float = _option(0.9, "interpolation between the average (1) and the base iterate (0)", group="optimizer")
    beta2: float = _option(0.98, "decay of the second moment", group="optimizer")
    eps: float = _option(1e-8, "added to the root of the second moment", group="optimizer")
    weight_decay: float = _option(0.1, "decay at the base width, times the rate, taken at y", group="optimizer")
    decay_rule: Decay = _option("independent", "how decay scales with width", group="optimizer")  # noqa: RUF009
    warmup: int = _option(20, "updates over which the rate rises", group="optimizer", low=0)

    updates: int | None = _option(None, "stop after this many updates (default: 200)", group="length", low=1)
    tokens: int | None = _option(None, "stop after this many tokens", group="length", low=1)
    max_time: float | None = _option(None, "stop after this many minutes", group="length", above=0)

    out: str = _option("runs/pretrain", "folder of the run", group="output")
    report_every: int = _option(10, "updates between reports", group="output", low=1)
    eval_every: int = _option(50, "updates between validations", group="output", low=1)
    save_every: int = _option(50, "updates between checkpoints", group="output", low=1)
    keep: int = _option(2, "checkpoints to keep", group="output", low=1)
    prompt: str = _option("The ", "start of the sample", group="output")

    def __post_init__(self) -> None:
        reasons = Reasons()
        for item in fields(self):
            _check(reasons, item.name, str(item.type), getattr(self, item.name), item.metadata)
        if self.decay_rule not in DECAY_RULES:
            reasons.add("unknown", "decay_rule", f"{self.decay_rule!r}; choose one of: {', '.join(DECAY_RULES)}")
        reasons.refuse_if_any()

    @property
    def update_limit(self) -> int | None:
        """After how many updates the run stops, from ``updates`` and ``tokens``; None if only time limits it."""
        limits = [limit for limit in (self.updates, self._token_updates) if limit is not None]
        if not limits and self.max_time is None:
            return DEFAULT_UPDATES
        return min(limits, default=None)

    @property
    def _token_updates(self) -> int | None:
        return None if self.tokens is None else max(1, self.tokens // self.tokens_an_update)

    @property
    def tokens_an_update(self) -> int:
        """Tokens that one update learns from."""
        return self.seq_length * self.batch_size * self.accumulation


DEFAULT_UPDATES = 200
DECAY_RULES = get_args(Decay)
LENGTHS = ("updates", "tokens", "max_time")
WHILE_GOING_ON = frozenset(
    {*LENGTHS, "out", "report_every", "eval_every", "eval_batches", "save_every", "keep", "prompt"}
)
"""Options that may differ when a run goes on: none of them changes an update."""


def option_help(name: str) -> str:
    """The help of one option."""
    return next(item.metadata["help"] for item in fields(PretrainConfig) if item.name == name)


def from_mapping(settings: Mapping[str, Any], source: str = "config") -> PretrainConfig:
    """A config from a parsed file or a saved run.

    Args:
        settings: Option names and values.
        source: Where they come from, for the errors.

    Raises:
        Refused: For unknown keys and for values outside their range, all at once.
    """
    known = {item.name: item for item in fields(PretrainConfig)}
    reasons = Reasons()
    for name in settings:
        if name not in known:
            reasons.add("unknown", f"{source}: {name}", f"no such option; the options are: {', '.join(sorted(known))}")
    values = {name: value for name, value in settings.items() if name in known}
    try:
        config = PretrainConfig(**values)
    except Refused as refused:
        reasons.extend(refused)
    reasons.refuse_if_any()
    return config


def _check(reasons: Reasons, name: str, kind: str, value: Any, metadata: Mapping[str, Any]) -> None:
    if value is None and "None" in kind:
        return
    wanted = kind.removesuffix(" | None")
    accepted = _ACCEPTED[wanted.split("[")[0]]
    if not isinstance(value, accepted) or (isinstance(value, bool) and wanted != "bool"):
        reasons.add("type", name, f"{value!r} is not {_NAMES[accepted]}")
        return
    if wanted not in ("int", "float"):
        return
    low, above = metadata["low"], metadata["above"]
    if not math.isfinite(value):
        reasons.add("out_of_range", name, f"{value!r} is not finite; give a finite number")
    elif low is not None and value < low:
        reasons.add("out_of_range", name, f"{value!r} is too small; give a whole number ≥ {low:g}")
    elif above is not None and value <= above:
        reasons.add("out_of_range", name, f"{value!r} is not allowed; give a number > {above:g}")


_ACCEPTED: dict[str, Any] = {
    "int": int,
    "float": (int, float),
    "str": str,
    "Decay": str,
    "bool": bool,
    "Mapping": Mapping,
}
_NAMES: dict[Any, str] = {
    int: "a whole number",
    (int, float): "a number",
    str: "text",
    bool: "true or false",
    Mapping: "a mapping of config fields",
}
