"""The settings of a pretraining run: each option once, for the command line, the YAML file and Python. Pure Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from ..errors import Reasons
from .options import check, option

Decay = Literal["independent", "standard", "none"]
DECAY_RULES = get_args(Decay)
Dtype = Literal["float32", "bfloat16"]
Packing = Literal["stream", "documents"]
AccumulationWeight = Literal["batch", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """What ``mufree pretrain`` trains, on what, how, for how long, and where it writes.

    Every field is an option of the command line (``base_width`` is ``--base-width``) and a key of the YAML file; the
    help of each is in :func:`option_help`. Nothing about the end of the run changes an update, so that a run can
    always go on.

    Raises:
        Refused: For values outside their range, all at once.
    """

    width: int = option(128, "hidden size of the model to train", group="model", low=1)
    base_width: int = option(64, "hidden size at which the learning rate was tuned", group="model", low=1)
    layers: int = option(2, "number of blocks", group="model", low=1)
    head_dim: int = option(16, "size of an attention head; a wider model has more heads", group="model", low=2)
    model_type: str = option("llama", "architecture, by mlx-lm's name", group="model")
    model: Mapping[str, Any] = option({}, "further fields of the architecture's config (YAML only)", group="model")
    recipe: Mapping[str, Any] = option({}, "content of the recipe that the settings come from", group="model")
    zero_readout: bool = option(False, "start the output head at zero", group="model")
    zero_query: bool = option(False, "start the attention's queries at zero", group="model")
    seed: int = option(0, "seed of initialisation and data order", group="model", low=0, high=2**64 - 1)

    data: str | None = option(
        None,
        "text file, folder of them, .jsonl with a text field, or .bin/.npy token files",
        group="data",
        metavar="PATH",
    )
    tokenizer: str | None = option(None, "local tokenizer folder (default: bytes)", group="data", metavar="FOLDER")
    cache: str | None = option(
        None,
        "folder for the tokens of a text of more than 32 MB, or of any if given (default: tokens beside the run)",
        group="data",
        metavar="FOLDER",
    )
    seq_length: int = option(64, "tokens a sequence", group="data", low=1)
    batch_size: int = option(14, "sequences a micro-batch", group="data", low=1)
    accumulation: int = option(1, "micro-batches an update", group="data", low=1)
    eval_batches: int = option(8, "micro-batches of a validation", group="data", low=1)

    lr: float = option(
        2.0**-6, "learning rate at the base width, constant after the warmup", group="optimizer", above=0
    )
    beta1: float = option(0.9, "interpolation between the average (1) and the base iterate (0)", group="optimizer")
    beta2: float = option(0.98, "decay of the second moment", group="optimizer")
    eps: float = option(1e-8, "added to the root of the second moment", group="optimizer")
    weight_decay: float = option(0.1, "decay at the base width, times the rate, taken at y", group="optimizer")
    decay_rule: Decay = option(  # noqa: RUF009 – makes a field
        "independent", "how decay scales with width", group="optimizer", choices=DECAY_RULES
    )
    warmup: int = option(20, "updates over which the rate rises", group="optimizer", low=0)

    weights: str | None = option(
        None,
        "start from these weights alone: an export, a checkpoint's folder or a .safetensors file",
        group="run",
        metavar="PATH",
    )
    dtype: Dtype = option(  # noqa: RUF009 – makes a field
        "float32", "of the weights; the optimizer's state is float32", group="run", choices=get_args(Dtype)
    )
    grad_checkpoint: bool = option(False, "compute each block again for its gradient, to save memory", group="run")
    packing: Packing = option(  # noqa: RUF009 – makes a field
        "stream",
        "documents one after the other, cut anywhere, or packed whole into padded sequences",
        group="run",
        choices=get_args(Packing),
    )
    accumulation_weight: AccumulationWeight = option(  # noqa: RUF009 – makes a field
        "batch", "what each micro-batch of an update counts by", group="run", choices=get_args(AccumulationWeight)
    )
    max_grad_norm: float | None = option(
        None, "clip the gradient of an update to this norm (default: never)", group="run", above=0
    )

    updates: int | None = option(None, "stop after this many updates (default: 200)", group="length", low=1)
    tokens: int | None = option(None, "stop after this many tokens", group="length", low=1, high=2**63 - 1)
    max_time: float | None = option(None, "stop after this many minutes", group="length", above=0)

    out: str = option("runs/pretrain", "folder of the run", group="output", metavar="FOLDER")
    report_every: int = option(10, "updates between reports", group="output", low=1)
    eval_every: int = option(100, "updates between validations", group="output", low=1)
    save_every: int = option(50, "updates between checkpoints", group="output", low=1)
    keep: int = option(
        2, "last checkpoints to keep, beside the one with the best validation loss", group="output", low=1
    )
    prompt: str = option("The ", "start of the sample", group="output")

    def __post_init__(self) -> None:
        reasons = Reasons()
        for item in fields(self):
            check(reasons, item, getattr(self, item.name))
        reasons.refuse_if_any()
        if self.tokens is not None and self.tokens < self.tokens_an_update:
            reasons.add(
                "out_of_range",
                "tokens",
                f"{self.tokens} is less than one update's {self.tokens_an_update}; give at least that, "
                "or a smaller batch_size, accumulation or seq_length",
            )
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
        return None if self.tokens is None else self.tokens // self.tokens_an_update

    @property
    def tokens_an_update(self) -> int:
        """Tokens that one update learns from."""
        return self.seq_length * self.batch_size * self.accumulation


DEFAULT_UPDATES = 200
LENGTHS = ("updates", "tokens", "max_time")
WHILE_GOING_ON = frozenset(
    {
        *LENGTHS,
        *("out", "report_every", "eval_every", "eval_batches", "save_every", "keep", "prompt"),
        *("data", "tokenizer", "cache"),
    }
)
"""Options that may differ when a run goes on: none of them changes an update. Data and tokenizer may have moved; what
they are is compared by content."""

DESPITE = (
    *("lr", "eps", "weight_decay", "decay_rule", "warmup", "max_grad_norm"),
    *("batch_size", "accumulation", "accumulation_weight", "seq_length", "packing", "seed", "grad_checkpoint", "data"),
)
"""Options that may contradict the saved run where they are named: the checkpoint's arrays mean the same under them.
``data`` is what the tokens are, not where they lie."""

PRETRAIN_ONLY = ("weights", "dtype", "grad_checkpoint", "packing", "accumulation_weight", "max_grad_norm")
"""Options that no study reads."""


def defaults() -> dict[str, Any]:
    """The default of every option."""
    config = PretrainConfig()
    return {item.name: getattr(config, item.name) for item in fields(config)}


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
    reasons = Reasons()
    reasons.attempt(check_names, settings, source)
    known = defaults()
    values = {name: value for name, value in settings.items() if name in known}
    return reasons.settled(reasons.attempt(PretrainConfig, **values))


def check_names(settings: Mapping[str, Any], source: str) -> None:
    """Refuse settings that are no options.

    Raises:
        Refused: With each.
    """
    reasons, known = Reasons(), sorted(defaults())
    for name in settings:
        if name not in known:
            reasons.add_unknown(f"{source}: {name}", name, known, "option")
    reasons.refuse_if_any()
