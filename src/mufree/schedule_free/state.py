"""What optimizer state must look like: only arrays, our scalars under one reserved key, whole leaves.

Everything that changes with the updates is an ``mx.array`` in the state, because ``mx.compile`` freezes a Python
number without a word. A parameter's leaf holds ``z``, the rule's moments and, for half-precision parameters with
master weights, the float32 weights under the name of the sequence that the model holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..errors import CheckpointError, Reasons, refuse
from ..sizes import check_sizes
from .averaging import HOLDS_X, RESERVED, initial_scalars
from .form import HALF, Form, Leaf, working_dtype
from .identity import BETA1, RULE, check_identity
from .rule import Rule
from .scales import ScaleMapping
from .tree import trained, walk

FLOATING = (mx.float16, mx.bfloat16, mx.float32, mx.float64)
PRECISE = (mx.float32, mx.float64)
WHOLE = (mx.uint64, mx.int64, mx.uint32, mx.int32)
_REMEDY = (
    "the model was cast after optimizer.init, or the state is of another precision; cast before optimizer.init, or "
    "make a new optimizer"
)
_CAST = f" parameters need it: {_REMEDY}"
_NO_COPY = f" parameters have none: {_REMEDY}"
TAKEN = ("step", "learning_rate", RESERVED)
"""Top-level names of the state that a parameter tree must not use."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which arrays a parameter's state has.

    Args:
        rule: How ``z`` moves; names the moments.
        form: Which sequence the model holds.
        master_weights: Whether half-precision parameters have float32 state.
    """

    rule: Rule
    form: Form
    master_weights: bool

    def dtypes(self, parameter: mx.array) -> dict[str, mx.Dtype]:
        """Name → dtype of the state arrays of ``parameter``."""
        working = working_dtype(parameter.dtype)
        half = parameter.dtype in HALF
        names = {"z": working if self.master_weights else parameter.dtype}
        names |= dict.fromkeys(self.rule.moments, working)
        if half and self.master_weights:
            names[self.form.holds] = working
        return names

    def start(self, parameter: mx.array) -> Leaf:
        """The state of a parameter before its first update. ``z`` is a copy: later writes to it stay outside."""
        dtypes = self.dtypes(parameter)
        moments = {name: mx.zeros(parameter.shape, dtypes[name]) for name in self.rule.moments}
        copies = {name: mx.array(parameter.astype(dtype)) for name, dtype in dtypes.items() if name not in moments}
        return {name: copies.get(name, moments.get(name)) for name in dtypes}  # type: ignore[misc]

    def check_leaf(self, reasons: Reasons, path: str, parameter: mx.array, leaf: Any) -> None:
        """Note every array of a parameter's state that is missing, of another shape or dtype, or unknown."""
        found = leaf if isinstance(leaf, dict) else {}
        wanted = self.dtypes(parameter)
        needed = f"and a {parameter.dtype} parameter needs it; load a complete state, and change no model in a run"
        for name, dtype in wanted.items():
            array = found.get(name)
            if name == self.form.holds and name not in found and "z" in found:
                reasons.add("missing", f"{path}.{name}", f"not in the optimizer state, and {parameter.dtype}{_CAST}")
            elif not isinstance(array, mx.array):
                reasons.add("missing", f"{path}.{name}", f"not in the optimizer state, {needed}")
            elif array.shape != parameter.shape:
                message = f"shape {array.shape} in the optimizer state, the parameter has {parameter.shape}"
                reasons.add("shape", f"{path}.{name}", f"{message}; load the state of this model")
            elif array.dtype != dtype:
                message = f"{array.dtype} in the optimizer state, not {dtype}, and {parameter.dtype}{_CAST}"
                reasons.add("dtype", f"{path}.{name}", message)
        for name in found:
            if name not in wanted:
                message = f"unknown; with model_holds={self.form.holds!r} a leaf has {', '.join(wanted)}"
                if name == self.form.holds:
                    message = f"a float32 copy in the optimizer state, and {parameter.dtype}{_NO_COPY}"
                reasons.add("unknown", f"{path}.{name}", message)


def check_parameters(parameters: Any, scales: ScaleMapping | None) -> None:
    """Refuse a parameter tree that cannot be optimised.

    Args:
        parameters: A dict of dicts, lists and tuples of arrays.
        scales: Scales by path; None if there are none.

    Raises:
        Refused: With every path at fault.
        ShapeMismatch: If the scales are those of a model of other widths.
    """
    if not isinstance(parameters, dict):
        refuse("tree", "parameters", f"a {type(parameters).__name__}; give a dict of parameters")
    reasons = Reasons()
    for name in TAKEN:
        if name in parameters:
            reasons.add("reserved", name, "the optimizer's own state uses this name; rename the parameter or module")
    leaves = list(trained(parameters))
    if not leaves:
        reasons.add("empty", "parameters", "no parameter at all; unfreeze some, or leave this optimizer out")
    for path, leaf in leaves:
        dtype = getattr(leaf, "dtype", type(leaf).__name__)
        if dtype not in FLOATING:
            message = f"{dtype}; only float16, bfloat16, float32 and float64 can be trained; freeze it"
            reasons.add("dtype", path, message + (" (a quantised weight)" if dtype == mx.uint32 else ""))
        if scales is not None and path not in scales:
            reasons.add("unscaled", path, "has no scale; make the scales from this model")
    reasons.refuse_if_any()
    check_sizes(scales, {path: leaf.shape for path, leaf in leaves})


def check_gradients(layout: Layout, gradients: Any, parameters: Any, state: Any) -> None:
    """Refuse what cannot be one update, before anything has changed.

    Args:
        layout: What the state of a parameter has.
        gradients: Arrays in dicts, lists and tuples; another shape than the parameter's would broadcast into it.
        parameters: The parameters.
        state: State that was checked when it started, in case a parameter has changed its shape or precision since.

    Raises:
        Refused: With every path at fault.
        CheckpointError: If a state does not fit its parameter.
    """
    if not isinstance(gradients, dict):
        refuse("tree", "gradients", f"a {type(gradients).__name__}; give a dict of gradients")
    reasons, stale = Reasons(), Reasons()
    wanted: dict[mx.Dtype, dict[str, mx.Dtype]] = {}
    for path, gradient, parameter, leaf in trained(gradients, parameters, state):
        if not isinstance(gradient, mx.array):
            reasons.add("type", path, f"the gradient is a {type(gradient).__name__}; give an array")
        elif not isinstance(parameter, mx.array):
            reasons.add("missing", path, "has a gradient, but is not in the parameters given")
        elif gradient.shape != parameter.shape:
            message = (
                f"the gradient has shape {gradient.shape}, the parameter {parameter.shape}; give one of that shape"
            )
            reasons.add("shape", path, message)
        elif leaf:
            dtype = parameter.dtype
            if dtype not in wanted:
                wanted[dtype] = layout.dtypes(parameter)
            if not _fits(leaf, parameter, wanted[dtype]):
                layout.check_leaf(stale, path, parameter, leaf)
    reasons.refuse_if_any()
    stale.refuse_if_any(CheckpointError)


def _fits(leaf: Leaf, parameter: mx.array, wanted: Mapping[str, mx.Dtype]) -> bool:
    """Whether a leaf still fits: it was whole when it started and its arrays change together, so z speaks for all."""
    z = leaf.get("z")
    return z is not None and leaf.keys() == wanted.keys() and z.shape == parameter.shape and z.dtype == wanted["z"]


def check_scalars(reasons: Reasons, state: Any, layout: Layout) -> None:
    """Note what a loaded state lacks apart from parameters, and if it is of another optimizer or the other form."""
    if not isinstance(state, Mapping):
        reasons.add("tree", "state", f"a {type(state).__name__}; give the dict that optimizer.state was")
        return
    ours = state.get(RESERVED)
    ours = ours if isinstance(ours, Mapping) else {}
    scalars = {name: state.get(name) for name in ("step", "learning_rate")}
    scalars |= {f"{RESERVED}.{name}": ours.get(name) for name in (*initial_scalars(), BETA1, RULE)}
    dtypes = {"step": WHOLE, "learning_rate": FLOATING, f"{RESERVED}.{RULE}": WHOLE}
    for name, value in scalars.items():
        if not isinstance(value, mx.array):
            reasons.add(
                "missing", name, "not in the optimizer state; it is none of a schedule-free optimizer of this version"
            )
        elif value.shape != ():
            reasons.add("shape", name, f"shape {value.shape} in the optimizer state; a scalar is needed")
        elif value.dtype not in dtypes.get(name, PRECISE):
            reasons.add("dtype", name, f"{value.dtype} in the optimizer state; load the one that was saved")
    if reasons.found:
        return
    check_identity(reasons, ours, layout.form, layout.rule)
    holds = "x" if HOLDS_X in ours else "y"
    if holds != layout.form.holds:
        message = f"{layout.form.holds!r}, but the state is of a model that holds {holds!r}; load it so, then convert"
        reasons.add("form", "model_holds", message)


def check_same_leaves(reasons: Reasons, current: Any, new: Any) -> None:
    """Note every array of the ``current`` state that ``new`` lacks or has in another shape or dtype."""
    for path, have, given in walk(current, new):
        if path == "learning_rate":
            continue
        if not isinstance(given, mx.array):
            reasons.add("missing", path, "not in the state given; load a complete state")
        elif given.shape != have.shape:
            reasons.add("shape", path, f"shape {given.shape} in the state given; this optimizer has {have.shape}")
        elif given.dtype != have.dtype:
            reasons.add("dtype", path, f"{given.dtype} in the state given; this optimizer has {have.dtype}")


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Leaf]]:
    """Yield path and arrays of every parameter in a state."""
    if isinstance(state, dict):
        if isinstance(state.get("z"), mx.array):
            yield path, state
            return
        children: Any = ((key, child) for key, child in state.items() if path or key not in TAKEN)
    elif isinstance(state, list | tuple):
        children = enumerate(state)
    else:
        return
    for key, child in children:
        yield from leaves(child, f"{path}.{key}" if path else str(key))
