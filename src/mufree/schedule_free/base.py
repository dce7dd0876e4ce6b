"""What all schedule-free optimizers share: state, updates, learning rate.

Invariants: everything that changes with updates is an array in ``state``; ``z`` starts as a copy of the parameters;
a refusal comes before any state has changed; one update of a parameter is one kernel, compiled here when the caller
has not compiled the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.optimizers

from ..errors import CheckpointError, Reasons
from ..sizes import check_sizes
from .averaging import HOLDS_X, RESERVED, Averaging
from .conversion import convert
from .form import Form, Holds
from .gradient_point import AtY, at_y, gradient_points
from .held import parameter_tree
from .identity import Identity, starting_scalars
from .kernels import Member, advance_scalars, join_late, update_members
from .modes import Modes
from .peak_rate import PeakRate
from .rule import Rule
from .scales import ScaleMapping, multipliers
from .state import Layout, check_gradients, check_parameters, check_same_leaves, check_scalars
from .tree import assign, beside, mirror, place, replace_leaves, tracing, trained, walk

RateLike = float | mx.array | Callable[[mx.array], mx.array | float]


class ScheduleFree(Identity, Modes, AtY, PeakRate, mlx.optimizers.Optimizer):
    """The base of the schedule-free optimizers; subclasses only choose a rule and check their settings.

    Args:
        rule: How the base iterate moves.
        learning_rate: A number, a scalar array, or a schedule of the number of updates made.
        beta1: Interpolation β1 between ``z`` (0) and ``x`` (1).
        averaging: How updates are weighted.
        scales: Multipliers by path, or None.
        model_holds: ``"y"`` or ``"x"``.
        master_weights: Whether half-precision parameters have float32 state.
    """

    def __init__(
        self,
        rule: Rule,
        *,
        learning_rate: RateLike,
        beta1: float,
        averaging: Averaging,
        scales: ScaleMapping | None,
        model_holds: Holds,
        master_weights: bool,
    ) -> None:
        super().__init__()
        self._held = None
        self._layout = Layout(rule, Form(model_holds, beta1), master_weights)
        self._averaging = averaging
        self._scales = scales
        self._begun = False
        self._met = scales is None
        self._loaded = False
        self._rate: float | None = None
        self.state[RESERVED] = starting_scalars(self._layout.form, rule)
        if callable(learning_rate):
            self._schedulers["learning_rate"] = learning_rate
            self.learning_rate = learning_rate(self.step)
        else:
            self.learning_rate = learning_rate

    @property
    def model_holds(self) -> Holds:
        """Which sequence the model holds, ``"y"`` or ``"x"``."""
        return self._layout.form.holds

    @property
    def state(self) -> dict[str, Any]:
        """Everything that changes with updates, arrays only, nested as the parameters are.

        Setting it copies the given arrays into the dict that is already there, so that a compiled step which
        captured it goes on from them. What is missing or does not fit is refused, at once if the parameters are known,
        otherwise at the next ``init`` or ``update``. The weights belong to it: load both.

        Raises:
            CheckpointError: When set, as :meth:`check_state`.
            Refused: When set while the model holds ``x`` in place of ``y``.
        """
        return self._state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        if state is self._state:
            return
        self.check_state(state)
        if self._held is not None and not tracing(state["step"]):
            self._refuse_while_held("the state was set")
        assign(self._state, state)
        self._loaded = self._loaded or not self._begun
        self._initialized = self._begun

    def check_state(self, state: Any) -> None:
        """Refuse a state that cannot be loaded; nothing changes.

        Args:
            state: What :attr:`state` would be set to.

        Raises:
            CheckpointError: With everything that is missing or misshapen, or if it was trained with another β1 or by
                another schedule-free optimizer.
        """
        reasons = Reasons()
        check_scalars(reasons, state, self._layout)
        if not reasons.found and self._begun:
            check_same_leaves(reasons, self._state, state)
        reasons.refuse_if_any(CheckpointError)

    def init(self, parameters: dict[str, Any]) -> None:
        """Start the state of ``parameters``, or check a loaded one against them.

        Optional, as in MLX, but best called before a step is compiled: a refusal inside a trace costs the model.
        After the first ``init``, parameters that the state does not know yet join at their first gradient.

        Args:
            parameters: A dict of dicts, lists and tuples of arrays, usually ``model.trainable_parameters()``. Leaves
                named ``running_mean`` and ``running_var`` are left out and pass through everything: statistics are
                measured, and an average of variances may be negative.

        Raises:
            Refused: For a tree that cannot be optimised, with every reason; nothing has changed then.
            ShapeMismatch: For scales of a model of other widths, likewise.
            CheckpointError: For a loaded state that does not fit the parameters, likewise.
        """
        check_parameters(parameters, self._scales)
        reasons = Reasons()
        found = list(trained(parameters, self._state))
        for path, parameter, leaf in found:
            if self._loaded or (self._begun and leaf):
                self._layout.check_leaf(reasons, path, parameter, leaf)
        reasons.refuse_if_any(CheckpointError)
        if any(parameter.dtype == mx.float64 for _, parameter, _ in found):
            self._widen()
        if not (self._begun or self._loaded):
            mirror(parameters, self._state)
            for _, parameter, leaf in trained(parameters, self._state):
                leaf.update(self._layout.start(parameter))
        self._begun, self._loaded, self._initialized = True, False, True

    def update(self, model: Any, gradients: dict[str, Any]) -> None:
        """One update of ``model``, in place.

        Uncompiled updates of more than 32 MiB are evaluated in groups, so that the old arrays can be given back.

        Args:
            model: A module, or a tree of dicts and lists.
            gradients: Its gradients, or those of some of its parameters; they are not modified.

        Raises:
            Refused: If the model holds ``x`` in place of ``y``, or a parameter cannot be optimised.
            ShapeMismatch: If the scales are those of another model.

        Warns:
            UserWarning: If the model holds ``x`` and no gradient can have been taken at ``y``.
        """
        self._advance(gradients, model, lambda values: place(model, values))

    def _meet(self, model: Any) -> None:
        """Compare the scales with a whole module: they may be those of a deeper one."""
        if hasattr(model, "parameters"):
            check_sizes(self._scales, {}, model_paths={path for path, _ in walk(model.parameters())})
        self._met = True

    def apply_gradients(self, gradients: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
        """One update, returning the new parameters in the structure of ``gradients``.

        Args:
            gradients: A tree of gradients; they are not modified.
            parameters: The parameters, perhaps more than the gradients have; they are not modified.

        Raises:
            Refused: As :meth:`update`.
        """
        new: dict[str, mx.array] = {path: old for path, _, old in walk(gradients, parameters)}
        self._advance(gradients, parameters, new.update)
        return replace_leaves(gradients, new)

    def convert(self, model: Any, holds: Holds) -> None:
        """Change which sequence ``model`` holds, mid-run; the run goes on as if it had always held it.

        The next loss must fit: from :meth:`at_y` for ``"x"``, as it is for ``"y"``. A compiled step that captured the
        optimizer state is traced anew.

        Args:
            model: The model this optimizer trains, all of it.
            holds: ``"y"`` or ``"x"``.

        Raises:
            Refused: If the model lacks parameters of this optimizer, β1 is 0, or :meth:`eval` is in force.
        """
        reasons = Reasons()
        if holds not in ("y", "x"):
            reasons.add("unknown", "holds", f"{holds!r}; give 'y' or 'x'")
        elif holds == "y" and self._layout.form.beta1 == 0:
            reasons.add("out_of_range", "betas[0]", "0; a model can hold y only with β1 in (0, 1]")
        reasons.refuse_if_any()
        self._refuse_while_held("a conversion was asked for")
        if holds == self.model_holds:
            return
        convert(self._layout.form, holds, model, self._found(parameter_tree(model), complete=True))
        self._layout = replace(self._layout, form=replace(self._layout.form, holds=holds))
        if holds == "x":
            self.state[RESERVED][HOLDS_X] = mx.array(True)
        else:
            del self.state[RESERVED][HOLDS_X]

    def at_y(self, loss: Callable[..., Any], model: Any = None) -> Callable[..., Any]:
        """``loss`` with gradients taken at ``y``, for a model that holds ``x``.

        While ``model.training``, the model's trainable parameters have the value of ``y`` for the time of the call, and
        the gradient with respect to them is the one with respect to ``y``. Otherwise ``loss`` is called as it is.

        Any trainer will do that (1) takes its training gradients through this loss, with respect to the model's
        trainable parameters, under ``model.train()``; (2) passes the model as an argument of the loss (the first module
        among them that has something to train is it, so that a frozen reference may stand anywhere) or, if it does not
        pass it, has ``model`` given here; (3) makes one ``update`` of this optimizer an update, whatever it
        accumulates before; (4) compiles, if it does, with ``model.state`` and ``optimizer.state`` among inputs and
        outputs; and (5) validates and saves under ``model.eval()``, or from the parameters as the model holds them,
        which are ``x`` at any moment between calls. A trainer that computes another loss than this one, or a gradient
        of it in evaluation mode, trains at ``x``: that is another algorithm. The first update of a module warns if
        neither this loss nor :meth:`gradient_point` was called by then; nothing else can notice it.

        Args:
            loss: A loss function that takes the model as an argument, or a parameter tree as its first.
            model: The model, if the loss does not take it as an argument.

        Raises:
            Refused: With ``model_holds="y"``, where the model is at ``y`` already.
        """
        return at_y(self._layout.form, self.state, loss, model, self._ask_y)

    def gradient_point(self, params: Any) -> Any:
        """``y``, where gradients are taken, of parameters as the model holds them; other leaves pass through."""
        self._ask_y()
        return replace_leaves(params, gradient_points(self._layout.form, self.state, params)[1])

    def _advance(self, gradients: Any, parameters: Any, commit: Callable[[dict[str, mx.array]], Any]) -> None:
        if self._held is not None and not tracing(self.step):
            self._refuse_while_held("an update was asked for")
        if not self._met:
            self._meet(parameters)
        check_gradients(self._layout, gradients, parameters, self._state if self._initialized else {})
        if not self._initialized:
            self.init(beside(gradients, parameters))
        self._warn_at_x(parameters)
        k = self.step
        scheduled = {name: self._scalar(schedule(k)) for name, schedule in self._schedulers.items()}
        members = self._members(gradients, parameters)
        self.state.update(scheduled, step=k + 1)
        scalars, shared = advance_scalars(
            self._layout, self._averaging, k, self.state["learning_rate"], self.state[RESERVED], members
        )
        self.state[RESERVED].update(scalars)
        update_members(self._layout, members, shared, commit)

    def _members(self, gradients: Any, parameters: Any) -> list[Member]:
        """The parameters that have a gradient, with their state; those that join now get one."""
        found = list(trained(gradients, parameters, self._state))
        joining = [(path, g, p) for path, g, p, leaf in found if not leaf]
        if joining:
            check_parameters(beside(gradients, parameters), self._scales)
            if any(parameter.dtype == mx.float64 for _, _, parameter in joining):
                self._widen()
            mirror(gradients, self._state)
            states = {path: leaf for path, _, leaf in walk(gradients, self._state)}
            for path, gradient, parameter in joining:
                states[path].update(self._layout.start(parameter))
                join_late(self._layout, self.step, self._scalar_dtype, gradient, states[path])
            found = [(path, g, p, states[path]) for path, g, p, _ in found]
        return [Member.of(path, g, p, leaf, multipliers(self._scales, path)) for path, g, p, leaf in found]
