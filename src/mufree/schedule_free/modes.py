"""Which weights the model holds outside training, and the way back.

``average`` computes ``x`` and changes nothing. ``averaged``, ``eval`` and ``train`` put ``x`` into the model and later
the very same ``y`` arrays back, so switching loses nothing and can be repeated freely.

A compiled step does not look at Python flags again, so it cannot be stopped while the model holds ``x``. Therefore
references to all weights and state are kept; if ``step`` has advanced when ``x`` leaves the model, everything is put
back as it was and it is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from ..errors import Reasons, refuse
from .form import Leaf
from .held import Held, same
from .kernels import averages
from .state import Layout, leaves
from .tree import replace_leaves, walk


class Modes:
    """The switches between the sequences, for an optimizer with ``state``, ``_layout`` and ``_held``."""

    _held: Held | None
    _layout: Layout
    state: dict[str, Any]

    def average(self, params: Any) -> Any:
        """The average ``x`` of parameters.

        Args:
            params: The parameters as the model holds them, all or some; nothing in it changes.

        Returns:
            The same tree with ``x``, each leaf in its own dtype. Leaves that this optimizer does not train, such as
            frozen ones, pass through; so do all before the first update.

        Raises:
            Refused: If no leaf is one of this optimizer's, or a shape differs.
        """
        return replace_leaves(params, self._averages(params, complete=False))

    def averaged(self, model: Any) -> Any:
        """Context manager: ``model`` holds ``x`` inside, and afterwards the very same ``y`` arrays again.

        Also after an exception. Nothing happens if the model holds ``x`` already.

        Raises:
            Refused: On entry, if the model lacks parameters of this optimizer or another one holds ``x``. On exit, if
                updates ran inside (they are undone) or other weights were put in (they are dropped).
        """
        return averaged(self, model)

    def eval(self, model: Any) -> None:
        """Put the average ``x`` into ``model`` until :meth:`train`; updates are refused meanwhile. Idempotent.

        Raises:
            Refused: If the model lacks parameters of this optimizer, or another model holds ``x`` already.
        """
        if self._held is not None:
            self._held.check_model(model)
        elif self._layout.form.holds == "y":
            Held.enter(self, [self], model, block=False)

    @property
    def holds_average(self) -> bool:
        """Whether :meth:`eval` or :meth:`averaged` has put ``x`` where ``y`` was: not to update, nor to resume from."""
        return self._held is not None

    def train(self, model: Any, *, discard: bool = False) -> None:
        """Put the ``y`` arrays that :meth:`eval` took out back into ``model``. Idempotent.

        Args:
            model: The model that was given to :meth:`eval`.
            discard: Drop weights that were put into the model in the meantime, instead of refusing.

        Raises:
            Refused: If compiled updates ran meanwhile (they are undone), if the weights are not those that
                :meth:`eval` put there (nothing is changed), or inside an :meth:`averaged` block, whose end does this.
        """
        if self._held is None:
            return
        self._held.check_model(model)
        if self._held.block:
            refuse("in_block", "model", "holds x until the averaged block ends; leave the block, then train on")
        problem = self._held.swapped() if not discard else None
        if problem is not None:
            raise problem
        problem = self._held.leave()
        if problem is not None:
            raise problem

    def _refuse_while_held(self, what: str) -> None:
        if self._held is not None:
            refuse(
                "holds_x",
                "model",
                f"holds the average x, put there by eval or averaged, when {what}; nothing was changed; call "
                "train(model), or leave the averaged block, first",
            )

    def _averages(self, params: Any, *, complete: bool) -> dict[str, mx.array]:
        """Path → ``x`` of every leaf of ``params`` that has state; ``complete`` asks for all that have state."""
        form = self._layout.form
        found = self._found(params, complete=complete)
        if form.holds == "x":
            return {path: p for path, (p, _) in found.items()}
        placed = self._held.placed if self._held is not None else {}
        done = {path: p for path, (p, _) in found.items() if path in placed and same(p, placed[path])}
        rest = {path: pair for path, pair in found.items() if path not in done}
        held = [leaf.get(form.holds, p) for p, leaf in rest.values()]
        x = averages(form, held, [leaf["z"] for _, leaf in rest.values()], [p.dtype for p, _ in rest.values()])
        return done | dict(zip(rest, x, strict=True))

    def _found(self, params: Any, *, complete: bool) -> dict[str, tuple[mx.array, Leaf]]:
        """Path → parameter and state of every leaf of ``params`` that has state."""
        found = {
            path: (p, leaf) for path, p, leaf in walk(params, self.state) if isinstance(leaf, dict) and "z" in leaf
        }
        known = dict(leaves(self.state))
        reasons = Reasons()
        if complete or (known and not found):
            for path in known.keys() - found.keys():
                reasons.add("missing", path, "trained by this optimizer, but not in the parameters given")
        for path, (parameter, leaf) in found.items():
            if parameter.shape != leaf["z"].shape:
                reasons.add("shape", path, f"shape {parameter.shape}; this optimizer trains {leaf['z'].shape}")
        reasons.refuse_if_any()
        return found


@contextmanager
def averaged(optimizer: Any, model: Any) -> Iterator[None]:
    """Context manager: ``model`` holds the average ``x`` inside, and the very same ``y`` arrays afterwards.

    Args:
        optimizer: A schedule-free optimizer, or an MLX ``MultiOptimizer`` that holds some; each touches the parameters
            that it trains.
        model: The model they train.

    Returns:
        The context manager; ``with`` gives None.

    Raises:
        Refused: If no schedule-free optimizer is in ``optimizer``, or as :meth:`ScheduleFree.averaged` says.

    Example:
        >>> import mlx.core as mx, mlx.nn as nn, mlx.optimizers as optim
        >>> from mufree import AdamWScheduleFree, averaged
        >>> model = nn.Linear(2, 1)
        >>> matrices, rest = AdamWScheduleFree(learning_rate=0.1), optim.SGD(learning_rate=0.1)
        >>> both = optim.MultiOptimizer([matrices, rest], [lambda path, weight: weight.ndim == 2])
        >>> both.init(model.trainable_parameters())
        >>> both.update(model, model.trainable_parameters())
        >>> y, bias = model.weight, model.bias
        >>> with averaged(both, model):
        ...     model.bias is bias
        True
        >>> model.weight is y
        True

    References:
        Defazio et al. 2024, "The Road Less Scheduled", arXiv 2405.15682, Algorithm 1: ``x`` is what is evaluated.
    """
    members = [member for member in schedule_free_members(optimizer) if member._layout.form.holds == "y"]
    for member in members:
        if member._held is not None:
            member._held.check_model(model)
    members = [member for member in members if member._held is None]
    if not members:
        yield
        return
    held = Held.enter(optimizer, members, model, block=True)
    try:
        yield
    except BaseException as error:
        problem = held.leave()
        if problem is not None:
            error.add_note(str(problem))
        raise
    problem = held.swapped()
    problem = held.leave() or problem
    if problem is not None:
        raise problem


def schedule_free_members(optimizer: Any) -> Sequence[Any]:
    """As :func:`members_of`, but at least one.

    Raises:
        Refused: If there is none.
    """
    found = list(members_of(optimizer))
    if not found:
        refuse(
            "no_schedule_free",
            "optimizer",
            f"{type(optimizer).__name__} holds no schedule-free optimizer, so there is no average; evaluate the model "
            "as it is",
        )
    return found


def members_of(optimizer: Any) -> Iterator[Any]:
    """Each schedule-free optimizer in ``optimizer``, itself or the children of a ``MultiOptimizer`` at any depth."""
    if isinstance(optimizer, Modes):
        yield optimizer
    for child in getattr(optimizer, "optimizers", ()):
        yield from members_of(child)
