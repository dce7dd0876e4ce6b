"""What mufree raises, and how several problems become one refusal.

Every refusal is an exception and a value: its ``reasons`` say where the problem is, what was given, what is
allowed and what to do. All problems of one input are gathered and raised once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar, cast

_T = TypeVar("_T")

SECTIONS: Mapping[str, str] = {
    "delta": "Three examples",
    "holds_x": "Questions",
    "holds_y": "How to choose",
    "impl": "Questions",
    "in_block": "Questions",
    "no_minimum": "How to choose",
    "no_width": "Three examples",
    "not_covered": "Limits",
    "too_few": "Pretrain wide",
    "unknown_name": "Moving from",
    "unscaled": "Three examples",
}
"""Which section of the README says more about a kind of problem."""


SHOWN = 3
"""Places that a sentence names before it says how many more there are."""

_PER_LEAF = "shape"
"""The code of problems whose messages differ from leaf to leaf, though their cause is one."""

SYNONYMS = (
    ("lr", "learning_rate"),
    ("updates", "total_updates", "iters", "steps", "max_steps"),
    ("warmup", "warmup_steps"),
    ("out", "adapter_path", "output_dir"),
    ("seq_length", "max_seq_length"),
    ("accumulation", "grad_accumulation_steps", "gradient_accumulation_steps"),
    ("width", "hidden_size"),
    ("layers", "num_layers", "num_hidden_layers"),
)
"""Names of one and the same setting, here and in other programs, for who gives the one where it is another."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One problem of an input.

    Args:
        code: A short stable word for the kind of problem, e.g. ``"out_of_range"``.
        field: Where it is: a setting's name, a parameter's path or a file.
        message: What was given, what is allowed and what to do, in one sentence.

    Example:
        >>> from mufree import Reason
        >>> print(Reason("out_of_range", "lr", "-1 is negative; give a finite number ≥ 0"))
        lr: -1 is negative; give a finite number ≥ 0
    """

    code: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"

    @property
    def section(self) -> str | None:
        """The README's section that says more, or None."""
        return SECTIONS.get(self.code)


class Refused(ValueError):
    """An input that mufree does not accept, with every reason in ``reasons``.

    Its text has one line for each; the same problem at more than three places is one line with the first of them, and
    of shapes that do not fit it names three.

    Args:
        reasons: At least one :class:`Reason`.
    """

    def __init__(self, reasons: Iterable[Reason]) -> None:
        self.reasons: tuple[Reason, ...] = tuple(reasons)
        places: dict[str, list[str]] = {}
        for reason in self.reasons:
            places.setdefault(reason.message, []).append(reason.field)
        shapes = [reason for reason in self.reasons if reason.code == _PER_LEAF]
        for reason in shapes[SHOWN:]:
            places[reason.message].remove(reason.field)
        lines = [
            f"{place}: {message}"
            for message, found in places.items()
            for place in ([shown(found)] if len(found) > SHOWN else found)
        ]
        lines += [f"and {len(shapes) - SHOWN} more of other shapes"] if len(shapes) > SHOWN else []
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[Refused], tuple[tuple[Reason, ...]]]:
        return type(self), (self.reasons,)


class ShapeMismatch(Refused):
    """Two parameter trees that should have the same paths or finite sizes and do not: every path that differs.

    Args:
        reasons: At least one :class:`Reason`; its ``field`` is a path.
    """


class CheckpointError(Refused):
    """A saved state that cannot be used: damaged, of another run, or of another format.

    Args:
        reasons: At least one :class:`Reason`; its ``field`` is a file or a path.
    """


class NonFiniteLoss(ArithmeticError):
    """Training stopped because a loss or a gradient was infinite or not a number; its text names the update."""


@dataclass(slots=True)
class Reasons:
    """Collects the problems of one input, then refuses them together.

    Example:
        >>> reasons = Reasons()
        >>> reasons.add("out_of_range", "lr", "-1 is negative; give a finite number ≥ 0")
        >>> reasons.refuse_if_any()
        Traceback (most recent call last):
        mufree.errors.Refused: lr: -1 is negative; give a finite number ≥ 0
    """

    found: list[Reason] = field(default_factory=list)

    def add(self, code: str, where: str, message: str) -> None:
        """Keep one problem."""
        self.found.append(Reason(code, where, message))

    def extend(self, refused: Refused) -> None:
        """Keep every problem of another refusal."""
        self.found.extend(refused.reasons)

    def attempt(self, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T | None:
        """What a function returns, or None after keeping every problem that it refuses for."""
        try:
            return function(*args, **kwargs)
        except Refused as refused:
            self.extend(refused)
            return None

    def add_unknown(self, where: str, name: Any, known: Collection[str], noun: str, hint: str | None = None) -> None:
        """Keep a name that is none of those known, with the one that was probably meant.

        Args:
            where: The name, with its file or mapping.
            name: The name alone.
            known: The names there are, in the order in which they are told.
            noun: What such a name names, e.g. ``"option"``.
            hint: A sentence to say in place of the nearest name.
        """
        near = nearest(str(name), known)
        hint = hint or (f"did you mean {near}?" if near else None)
        start = f"{hint} The" if hint else "the"
        self.add("unknown", where, f"no such {noun}; {start} {noun}s are: {', '.join(known)}")

    def settled(self, value: _T | None) -> _T:
        """What an attempt returned, which is no None once nothing was refused.

        Raises:
            Refused: With all that was kept, if anything was.
        """
        self.refuse_if_any()
        return cast(_T, value)

    def refuse_if_any(self, exception: type[Refused] = Refused) -> None:
        """Raise ``exception`` with all that was kept, if anything was."""
        if self.found:
            raise exception(self.found)


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that was probably meant: one spelt alike, or what another program's name is called here.

    Args:
        name: What was given; dashes and underscores are alike.
        known: The names there are.

    Example:
        >>> nearest("lerning_rate", ["lr", "updates"]), nearest("updats", ["lr", "updates"]), nearest("x", ["lr"])
        ('lr', 'updates', None)
    """
    from difflib import get_close_matches

    meant = {one.replace("-", "_"): one for one in known}
    for names in SYNONYMS:
        here = next((one for one in names if one in meant), None)
        if here is not None:
            meant = dict.fromkeys(names, meant[here]) | meant
    near = get_close_matches(name.replace("-", "_"), meant, 1)
    return meant[near[0]] if near else None


def refuse(code: str, where: str, message: str, exception: type[Refused] = Refused) -> NoReturn:
    """Raise ``exception`` for a single problem."""
    raise exception([Reason(code, where, message)])


def missing_package(error: ImportError) -> ImportError | None:
    """The same error with what to install, if it is one of the optional parts that is missing; None otherwise."""
    package = (error.name or "").partition(".")[0]
    if package == "mlx" or "libmlx" in str(error):
        how = "on a Mac: pip install mlx; on Linux: pip install 'mlx[cpu]' (or 'mlx[cuda]')"
    elif package == "mlx_lm":
        how = "pip install 'mufree[lm]'"
    else:
        return None
    return ImportError(f"{package or 'mlx'} cannot be imported ({error}); {how}", name=error.name)


def shown(items: Iterable[Any]) -> str:
    """The first few of several things, and how many more there are: a list of every leaf of a model is not read."""
    found = [str(item) for item in items]
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
