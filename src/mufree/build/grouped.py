"""One MLX optimizer made of members, each owning some of the parameters at a fixed ratio of one rate.

Invariants: every parameter belongs to exactly one member; a member's rate is the shared rate times its factor at every
update, whether the rate comes from a schedule, from a float or was set by hand; the state has the same form as a stock
optimizer's (one ``step``, one ``learning_rate``, the parameters' tree), so that saving, loading and ``mx.compile`` do
not notice the members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_map_with_path

from mufree.errors import Reasons, refuse

Tree = Any
RESERVED = ("step", "learning_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A rule and what it owns.

    Args:
        optimizer: The rule: its ``init_single`` and ``apply_single`` are used, its own rate and state are not.
        paths: The parameters it owns, dotted as in ``model.parameters()``.
        rate_factor: Its rate divided by the shared rate, a finite number ≥ 0.
    """

    optimizer: optim.Optimizer
    paths: frozenset[str]
    rate_factor: float = 1.0


class Grouped(optim.Optimizer):
    """Several rules as one optimizer with one rate, one step and one state.

    Unlike ``mlx.optimizers.MultiOptimizer``, setting ``learning_rate`` sets the shared rate and keeps the ratios, a
    schedule drives all members, and ``step`` works.

    Args:
        members: The rules. Each path belongs to one of them.
        learning_rate: The shared rate, a float or a schedule of the step.

    Raises:
        Refused: A path is owned twice or is a reserved word, or a rule does more than MLX's per-parameter update. At
            the first update, or at ``init``: a parameter that no member owns.

    Example:
        >>> import mlx.core as mx, mlx.optimizers as optim
        >>> from mufree.build import Grouped, Member
        >>> members = [
        ...     Member(optimizer=optim.SGD(0.0), paths=frozenset({"body"})),
        ...     Member(optimizer=optim.SGD(0.0), paths=frozenset({"head"}), rate_factor=0.5),
        ... ]
        >>> one = {"body": mx.array(1.0), "head": mx.array(1.0)}
        >>> moved = Grouped(members, learning_rate=0.5).apply_gradients(one, one)
        >>> moved["body"].item(), moved["head"].item()
        (0.5, 0.75)
    """

    def __init__(self, members: Sequence[Member], learning_rate: float | Callable[[mx.array], mx.array]) -> None:
        super().__init__()
        _check_members(members)
        self._members = tuple(members)
        self._owner = {path: index for index, member in enumerate(members) for path in member.paths}
        self._known: set[str] = set()
        self._maybe_schedule("learning_rate", learning_rate)

    @property
    def members(self) -> tuple[Member, ...]:
        """The rules with what they own."""
        return self._members

    def init(self, parameters: Tree) -> None:
        """Make the state of every parameter by the rule that owns it.

        Raises:
            Refused: A parameter that no member owns, by path.
        """
        self._check_owned(parameters)
        super().init(parameters)  # makes the structure only: init_single below leaves every leaf empty

        def start(path: str, parameter: mx.array, state: dict[str, Any]) -> dict[str, Any]:
            if not state:
                self._members[self._owner[path]].optimizer.init_single(parameter, state)
            return state

        tree_map_with_path(start, parameters, self.state)
        self._known.update(path for path, _ in tree_flatten(parameters))

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Nothing: which rule makes a parameter's state depends on its path, see :meth:`init`.

        Args:
            parameter: Not looked at.
            state: Not looked at.
        """

    def apply_gradients(self, gradients: Tree, parameters: Tree) -> Tree:
        """The updated parameters, in the structure of the gradients.

        Args:
            gradients: A tree of gradients; they are not modified.
            parameters: The parameters, perhaps more than the gradients have; they are not modified.

        Raises:
            Refused: A gradient whose parameter no member owns, by path.
        """
        if not self._initialized or not self._known.issuperset(path for path, _ in tree_flatten(gradients)):
            self.init(gradients)
        for name, schedule in self._schedulers.items():
            self.state[name] = schedule(self.step)
        self.state["step"] = self.step + 1
        self._hand_out()
        try:
            return tree_map_with_path(self._apply, gradients, parameters, self.state)
        finally:
            for member in self._members:
                member.optimizer._state = {}

    def member_rate(self, path: str) -> mx.array:
        """The rate of a parameter: the shared one times its member's factor."""
        return self.learning_rate * self._members[self._owner[path]].rate_factor

    def _hand_out(self) -> None:
        """Show each rule the shared step and its own rate."""
        for member in self._members:
            rate = self.learning_rate if member.rate_factor == 1 else self.learning_rate * member.rate_factor
            member.optimizer._state = {"step": self.step, "learning_rate": rate}

    def _apply(self, path: str, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        return self._members[self._owner[path]].optimizer.apply_single(gradient, parameter, state)

    def _check_owned(self, parameters: Tree) -> None:
        unowned = [path for path, _ in tree_flatten(parameters) if path not in self._owner]
        if unowned:
            _refuse_unowned(unowned)


def _refuse_unowned(paths: Iterable[str]) -> Any:
    reasons = Reasons()
    for path in paths:
        reasons.add("unowned", path, "belongs to no group of the optimizer; build it from the model as it is trained")
    reasons.refuse_if_any()


def _check_members(members: Sequence[Member]) -> None:
    if not members:
        refuse("empty", "members", "() has no group; give at least one")
    reasons = Reasons()
    owned: set[str] = set()
    for index, member in enumerate(members):
        kind = type(member.optimizer)
        if kind.apply_gradients is not optim.Optimizer.apply_gradients:
            reasons.add(
                "not_a_rule",
                f"members[{index}]",
                f"{kind.__name__} does more than an update per parameter; only stock rules can be grouped",
            )
        if not 0 <= member.rate_factor < float("inf"):
            reasons.add(
                "out_of_range", f"members[{index}].rate_factor", f"{member.rate_factor!r}; give a finite number ≥ 0"
            )
        if any(member.optimizer is other.optimizer for other in members[:index]):
            reasons.add("given_twice", f"members[{index}]", "is another member's object; build a rule for each")
        for path in sorted(member.paths):
            if path in owned:
                reasons.add("owned_twice", path, "belongs to two groups of the optimizer; give it to one")
            if path.split(".")[0] in RESERVED:
                words = ", ".join(RESERVED)
                reasons.add("reserved", path, f"starts with a word that the state needs ({words}); rename it")
        owned |= member.paths
    reasons.refuse_if_any()
