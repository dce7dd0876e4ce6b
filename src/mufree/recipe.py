"""A recipe: what the sweep of a small model found, as a file that trains any width. Pure Python."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from .errors import Reasons, refuse
from .files import read_json, write_json

FORMAT = 1
FIXED = ("base_width", "model_type", "layers", "head_dim", "model", "tokenizer")
"""Settings that a recipe was tuned at and does not reach beyond; another value asks for another sweep."""

TUNED = (
    "lr",
    "zero_readout",
    "zero_query",
    "seq_length",
    "batch_size",
    "accumulation",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "decay_rule",
    "warmup",
)
"""Settings that it says; another value is taken only where it is named as meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The rate that a sweep at the base width found, with everything it depends on.

    Args:
        rate: Learning rate at the base width.
        base_width: The width that was swept.
        settings: The settings in :data:`FIXED` and :data:`TUNED` that were swept under, by name; none for a sweep of
            models that are not built from settings.
        model_config: The base model's config, where it has one.
        base_shapes: Path to the base size of each axis, None where it does not scale.
        tokenizer_hash: Of the tokenizer, where there is one.
        updates: Updates of every run of the sweep.
        seconds: What the sweep at the base width took.
        sweep: One row for each width, parametrisation and rate: the mean loss over the seeds.
        verdict: The sweep's verdict in a sentence.
        passed: Whether the transfer was checked and held; None if only the base width was swept.
        regret: Highest share that the rate costs at a swept width; None if only the base width was swept.
        format: The version of the file's format, 1.

    Raises:
        Refused: If a part is missing or is not what it should be.

    Example:
        >>> from mufree import Recipe
        >>> recipe = Recipe(
        ...     rate=2**-6, base_width=64, settings={"warmup": 20}, model_config={}, base_shapes={"w": (64, None)},
        ...     tokenizer_hash="", updates=240, seconds=45.0, passed=True, regret=0.002,
        ... )  # usually made by ``Transfer.recipe`` or read by ``Recipe.load``
        >>> recipe.summary()
        'rate 2^-6, tuned at 64 in 45 s, regret at most 0.2 %'
    """

    rate: float
    base_width: int
    settings: Mapping[str, Any]
    model_config: Mapping[str, Any]
    base_shapes: Mapping[str, Sequence[int | None]]
    tokenizer_hash: str
    updates: int
    seconds: float
    sweep: Sequence[Mapping[str, Any]] = ()
    verdict: str = ""
    passed: bool | None = None
    regret: float | None = None
    format: int = field(default=FORMAT)

    def __post_init__(self) -> None:
        reasons = Reasons()
        if self.format != FORMAT:
            reasons.add("format", "recipe: format", f"is {self.format!r}; this version reads format {FORMAT}")
        if not isinstance(self.rate, int | float) or isinstance(self.rate, bool) or not 0 < self.rate < math.inf:
            reasons.add("out_of_range", "recipe: rate", f"{self.rate!r} is not a finite number > 0")
        for name in ("settings", "model_config", "base_shapes"):
            if not isinstance(getattr(self, name), Mapping):
                reasons.add("type", f"recipe: {name}", f"{getattr(self, name)!r} is not a mapping")
        if isinstance(self.settings, Mapping) and self.settings.get("lr", self.rate) != self.rate:
            said = (
                f"{self.rate!r} is not the lr among its settings, {self.settings['lr']!r}; it was edited, sweep again"
            )
            reasons.add("contradiction", "recipe: rate", said)
        reasons.refuse_if_any()

    def save(self, path: str | Path) -> None:
        """Write it as JSON.

        Raises:
            OSError: If it cannot be written.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_json(Path(path), self.as_dict())

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Read one.

        Raises:
            Refused: If there is none, or it is not whole.
        """
        try:
            content = read_json(Path(path))
        except FileNotFoundError:
            refuse("missing", "recipe", f"{path} does not exist; make it with mufree transfer --save {path}")
        except (OSError, ValueError) as error:
            refuse("unreadable", "recipe", f"{path} is no JSON file that can be read: {error}")
        return cls.from_mapping(content, str(path))

    @classmethod
    def from_mapping(cls, content: Any, where: str = "recipe") -> Recipe:
        """A recipe from what :meth:`as_dict` gave.

        Args:
            content: That dict.
            where: What to call it in a refusal.

        Raises:
            Refused: If it is not whole.
        """
        names = {item.name for item in fields(cls)}
        needed = {
            "rate",
            "base_width",
            "settings",
            "model_config",
            "base_shapes",
            "tokenizer_hash",
            "updates",
            "seconds",
            "format",
        }
        if not isinstance(content, Mapping) or needed - content.keys() or content.keys() - names:
            refuse("unreadable", "recipe", f"{where} is no recipe of mufree's; make one with mufree transfer --save")
        return cls(**content)

    def as_dict(self) -> dict[str, Any]:
        """The recipe as JSON."""
        return dict(json.loads(json.dumps(asdict(self))))

    def settings_with(self, given: Mapping[str, Any], despite: Collection[str] = ()) -> dict[str, Any]:
        """Settings for pretraining at any width: the recipe's, what is given besides, and the recipe itself.

        Args:
            given: Settings that were given; those that say the same as the recipe are welcome.
            despite: Names of given settings that are meant to differ from the recipe.

        Raises:
            Refused: For everything that the recipe does not cover or contradicts, all at once.
        """
        missing = [name for name in (*FIXED, *TUNED) if name not in self.settings]
        if missing:
            refuse("not_covered", "recipe", f"is of a sweep without the settings {', '.join(missing)}; sweep with them")
        reasons = Reasons()
        for name in despite:
            if name not in TUNED:
                reasons.add("unknown", "despite", f"{name!r} cannot differ from a recipe; one of: {', '.join(TUNED)}")
        for name in (*FIXED, *TUNED):
            if name not in given or given[name] == self.settings[name]:
                continue
            if name == "tokenizer" and given[name] and self.settings[name]:
                continue  # another place; what is in it is compared by its hash
            says = f"{given[name]!r} is not the {self.settings[name]!r} that the recipe was tuned at"
            if name in FIXED:
                reasons.add("not_covered", name, f"{says}, and it does not reach there; leave it out, or sweep anew")
            elif name not in despite:
                reasons.add("contradiction", name, f"{says}; leave it out, or say that it is meant: --despite {name}")
        reasons.refuse_if_any()
        return {**self.settings, **given, "recipe": self.as_dict()}

    def check_covers(self, model_config: Mapping[str, Any], tokenizer_hash: str) -> None:
        """Refuse a model or tokenizer that the recipe was not tuned for.

        Args:
            model_config: The config of the model to train, brought to the base width.
            tokenizer_hash: Of its tokenizer.

        Raises:
            Refused: With every difference.
        """
        reasons = Reasons()
        for name in sorted({*model_config, *self.model_config} - {"max_position_embeddings"}):
            here, tuned = model_config.get(name), self.model_config.get(name)
            if here != tuned:
                reasons.add("not_covered", name, f"{here!r} is not the {tuned!r} that the recipe was tuned at")
        if tokenizer_hash != self.tokenizer_hash:
            reasons.add("not_covered", "tokenizer", "is not the one that the recipe was tuned with; sweep anew with it")
        reasons.refuse_if_any()

    def summary(self) -> str:
        """One line for people: ``rate 2^-6, tuned at 64 in 45 s, regret at most 0.2 %``."""
        cost = "transfer not checked" if self.regret is None else f"regret at most {100 * self.regret:.2g} %"
        held = ", which did not pass its check" if self.passed is False else ""
        return f"rate {rate_text(self.rate)}, tuned at {self.base_width} in {seconds_text(self.seconds)}, {cost}{held}"


def rate_text(rate: float) -> str:
    """A rate as people write it: ``2^-6`` where it is a power of two.

    Example:
        >>> rate_text(0.015625), rate_text(0.01)
        ('2^-6', '0.01')
    """
    mantissa, exponent = math.frexp(rate)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{rate:g}"


def seconds_text(seconds: float) -> str:
    """A duration in the unit that fits.

    Example:
        >>> seconds_text(45.2), seconds_text(200), seconds_text(1500), seconds_text(9000)
        ('45 s', '3.3 min', '25 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    number, unit = (seconds / 60, "min") if seconds < 6000 else (seconds / 3600, "h")
    return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
