"""Compiled functions of one update: all scalars in one, every group of parameters in one more.

Inside somebody else's trace they dissolve into it; outside they give uncompiled callers the same fused kernels, and
scalars that are the same bit for bit. They are kept by rule and form, so optimizers stay plain to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mlx.core as mx

from .averaging import Averaging, Scalars
from .form import Form, Leaf, working_dtype
from .rule import Coefficients, Multipliers, Rule
from .state import Layout
from .tree import tracing

EVALUATE_ABOVE = 32 * 2**20
"""Bytes of parameters from which an uncompiled update is evaluated in groups: a graph that is not evaluated keeps the
old arrays of every leaf."""
GROUP_BYTES, MOST_GROUPS = 8 * 2**20, 16

Variant = tuple[Multipliers, mx.Dtype]
Shared = dict[Variant, tuple[tuple[mx.array, mx.array], Coefficients]]


@dataclass(slots=True)
class Member:
    """One parameter that takes part in an update.

    Args:
        path: Where it is.
        arrays: Its ``parameter`` and ``gradient``, given up once they are in the graph.
        state: Its dict in the optimizer state.
        variant: Its multipliers and working precision.
        nbytes: Size of the parameter.
    """

    path: str
    arrays: Leaf
    state: Leaf
    variant: Variant
    nbytes: int

    @classmethod
    def of(cls, path: str, gradient: mx.array, parameter: mx.array, state: Leaf, multipliers: Multipliers) -> Member:
        """A member from its arrays."""
        arrays = {"parameter": parameter, "gradient": gradient}
        return cls(path, arrays, state, (multipliers, working_dtype(parameter.dtype)), parameter.nbytes)


def advance_scalars(
    layout: Layout, averaging: Averaging, k: mx.array, learning_rate: mx.array, scalars: Scalars, members: list[Member]
) -> tuple[Scalars, Shared]:
    """The scalars of update ``k + 1``, and what each variant of its members needs."""
    variants = tuple(dict.fromkeys(member.variant for member in members))
    new, shared = _scalar_function(layout.rule, layout.form, averaging, variants)(k, learning_rate, scalars)
    return new, dict(zip(variants, shared, strict=True))


@lru_cache(maxsize=256)
def _scalar_function(rule: Rule, form: Form, averaging: Averaging, variants: tuple[Variant, ...]) -> Any:
    def advance(k: mx.array, learning_rate: mx.array, before: Scalars) -> Any:
        dtype = before["weight_sum"].dtype
        k1 = (k + 1).astype(dtype)
        rate = rule.rate(k1, learning_rate.astype(dtype))
        after = averaging.advance(k1, rate, before)
        shared = []
        for multipliers, working in variants:
            coefficients = rule.coefficients(k1, rate, multipliers)
            shared.append(
                (
                    tuple(weight.astype(working) for weight in form.weights(after["c"])),
                    tuple(value.astype(working) for value in coefficients),
                )
            )
        return after, shared

    return mx.compile(advance)


@lru_cache(maxsize=256)
def _group_function(rule: Rule, form: Form) -> Any:
    def update(leaves: list[Leaf], weights: list[Any], coefficients: list[Coefficients]) -> list[Leaf]:
        return [form.step(rule, *given) for given in zip(leaves, weights, coefficients, strict=True)]

    return mx.compile(update)


def update_members(
    layout: Layout, members: list[Member], shared: Shared, commit: Callable[[dict[str, mx.array]], Any]
) -> None:
    """Update every member's state in place and hand its new parameter to ``commit``."""
    function = _group_function(layout.rule, layout.form)
    total = sum(member.nbytes for member in members)
    evaluate = total > EVALUATE_ABOVE
    for group in _groups(members, max(GROUP_BYTES, total // MOST_GROUPS) if evaluate else total):
        chosen = [shared[member.variant] for member in group]
        given = [member.state | member.arrays for member in group]
        new = function(given, [weights for weights, _ in chosen], [coefficients for _, coefficients in chosen])
        # Only the graph may still hold the old arrays, so that their memory can become that of the new ones.
        del given
        values = {}
        for member, leaf in zip(group, new, strict=True):
            member.arrays.clear()
            values[member.path] = leaf.pop("parameter")
            member.state.update(leaf)
        commit(values)
        if evaluate:
            evaluate = not tracing([*values.values(), new])


def _groups(members: list[Member], limit: int) -> Iterator[list[Member]]:
    group: list[Member] = []
    size = 0
    for member in members:
        if group and size + member.nbytes > limit:
            yield group
            group, size = [], 0
        group.append(member)
        size += member.nbytes
    if group:
        yield group


def join_late(layout: Layout, k: mx.array, dtype: mx.Dtype, gradient: mx.array, leaf: Leaf) -> None:
    """Give a parameter that joins after ``k`` updates the moments with which its first move is the rate."""
    for name, moment in zip(layout.rule.moments, layout.rule.late_moments(gradient, k.astype(dtype)), strict=True):
        leaf[name] = moment.astype(leaf[name].dtype)


def averages(form: Form, held: list[mx.array], z: list[mx.array], dtypes: list[mx.Dtype]) -> list[mx.array]:
    """``x`` of parameters, each in its dtype, from the sequence that the model holds."""
    return [x.astype(dtype) for x, dtype in zip(_average_function(form)(held, z), dtypes, strict=True)]


@lru_cache(maxsize=64)
def _average_function(form: Form) -> Any:
    def average(held: list[mx.array], z: list[mx.array]) -> list[mx.array]:
        return [
            form.average(*(a.astype(working_dtype(weight.dtype)) for a in (weight, base)))
            for weight, base in zip(held, z, strict=True)
        ]

    return mx.compile(average)
