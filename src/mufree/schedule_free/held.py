"""What is remembered while a model holds ``x`` in place of ``y``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..errors import Reason, Refused, refuse
from .tree import assign, copy_containers, place, walk


@dataclass(slots=True, eq=False)
class Held:
    """References to everything as it was when ``x`` was put into a model.

    Args:
        optimizer: The outermost optimizer, whose whole state belongs to the model's weights.
        members: The schedule-free optimizers in it.
        model: The model.
        taken: Path → the ``y`` array taken out.
        placed: Path → the ``x`` array put in.
        weights: Every array of the model, by path, as it was.
        states: The state of ``optimizer`` as it was.
        steps: ``step`` of each member.
        block: Whether an :func:`averaged` block put ``x`` in, whose end takes it out.
    """

    optimizer: Any
    members: list[Any]
    model: Any
    taken: dict[str, mx.array]
    placed: dict[str, mx.array]
    weights: dict[str, mx.array]
    states: list[Any]
    steps: list[mx.array]
    block: bool

    @classmethod
    def enter(cls, optimizer: Any, members: list[Any], model: Any, *, block: bool) -> Held:
        """Put ``x`` into ``model`` and remember the way back; refuses before anything has changed."""
        weights = dict(walk(parameter_tree(model)))
        placed: dict[str, mx.array] = {}
        for member in members:
            placed |= member._averages(parameter_tree(model), complete=True)
        held = cls(
            optimizer=optimizer,
            members=members,
            model=model,
            taken={path: weights[path] for path in placed},
            placed=placed,
            weights=weights,
            states=[copy_containers(part.state) for part in _parts(optimizer)],
            steps=[member.step for member in members],
            block=block,
        )
        place(model, placed)
        # A module that is in the model twice has two paths and one array, the last one placed.
        now = dict(walk(parameter_tree(model)))
        held.placed = {path: now[path] for path in placed}
        for member in members:
            member._held = held
        return held

    def check_model(self, model: Any) -> None:
        """Refuse another model than the one that holds ``x``."""
        if model is not self.model:
            refuse("other_model", "model", "not the one that holds the average x; give that one, or end that first")

    def updates(self) -> int | None:
        """How many updates ran since; None if a failed trace has left the state without values."""
        ran = 0
        for member, before in zip(self.members, self.steps, strict=True):
            if member.step is before:
                continue
            try:
                ran = max(ran, (member.step - before).item())
            except (ValueError, RuntimeError):
                return None
        return ran

    def swapped(self) -> Refused | None:
        """A refusal if the model's weights are not those that were put there, though no update ran."""
        if self.updates() != 0:
            return None
        now = dict(walk(parameter_tree(self.model)))
        paths = [path for path, x in self.placed.items() if path not in now or not same(now[path], x)]
        if self.block:
            message = (
                "was replaced inside the averaged block; y was put back, and what was put in was dropped; to cast or "
                "save x, take it from optimizer.average(model.parameters()), and load weights outside the block"
            )
        else:
            message = (
                "was replaced while the model held the average x; load weights before eval or after train; "
                "train(model, discard=True) drops them and puts y back"
            )
        return Refused([Reason("swapped", path, message) for path in paths]) if paths else None

    def leave(self) -> Refused | None:
        """Put ``y`` back. If updates ran, put all weights and state back, and return the refusal that says so."""
        updates = self.updates()
        for member in self.members:
            member._held = None
        if updates == 0:
            place(self.model, self.taken)
            return None
        place(self.model, self.weights)
        for part, state in zip(_parts(self.optimizer), self.states, strict=True):
            assign(part.state, state)
        what = "a step failed" if updates is None else f"{updates} update{'s' if updates > 1 else ''} ran"
        undone = "weights and optimizer state were put back" if updates is None else "they were undone"
        return Refused(
            [
                Reason(
                    "updated_at_x",
                    "model",
                    f"{what} while the model held x; {undone}; call train(model), or leave the averaged block, "
                    "before training on",
                )
            ]
        )


def parameter_tree(model: Any) -> Any:
    """Every parameter of a module or tree, frozen ones and running statistics included."""
    return model.parameters() if hasattr(model, "parameters") else model


def _parts(optimizer: Any) -> list[Any]:
    """The optimizers whose ``state`` is a dict of their own."""
    children = getattr(optimizer, "optimizers", None)
    return [optimizer] if children is None else [part for child in children for part in _parts(child)]


def same(array: mx.array, other: mx.array) -> bool:
    """Whether two arrays are one or have equal values: a compiled function hands captured arrays back as new ones."""
    if array is other:
        return True
    try:
        return array.shape == other.shape and bool(mx.array_equal(array, other, equal_nan=True).item())
    except ValueError:  # inside a trace there are no values to compare
        return True
