"""Which embedding a model's code reads out with: found in its compiled functions, which are there without a source.

A head is ``embed.as_linear(h)``, or a product with the embedding's weight: ``h @ embed.weight.T``, ``mx.matmul``,
``mx.einsum`` and the like. Names are compared with the ends of parameter paths; what is found nowhere is not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dis import Instruction, get_instructions, stack_effect
from itertools import pairwise
from types import CodeType
from typing import Any

from .functions import codes, functions_of, helpers_of
from .kinds import Placement
from .shapes import Dim
from .walk import Leaf, modules

_TURNS = ("T", "transpose", "swapaxes", "moveaxis")
PRODUCTS = ("matmul", "einsum", "tensordot", "inner", "addmm", "transpose", "swapaxes", "moveaxis")
_SUBSCRIPTS = ("BINARY_SUBSCR", "BINARY_OP")


@dataclass(frozen=True, slots=True)
class Uses:
    """What one class's code says about embeddings.

    Args:
        exact: Names that ``as_linear`` is called on.
        beside: Names and words in a function that calls ``as_linear``, or a helper that does.
        tables: Pairs of a name and an attribute of it, such as ``("embed", "weight")``, that are turned or multiplied.
    """

    exact: frozenset[str]
    beside: frozenset[str]
    tables: frozenset[tuple[str, str]]


def tables(
    found: Sequence[Leaf], dims: Mapping[str, tuple[Dim, ...]], placements: Mapping[str, Placement]
) -> list[Leaf]:
    """Parameters that look vectors of width up: embeddings, and tables of one's own that are named input-like."""
    adapted = {leaf.path.rpartition(".")[0] for leaf in found if leaf.name.startswith("lora_")}
    result = []
    for leaf in found:
        placement, axes = placements.get(leaf.path), dims[leaf.path]
        embeds = hasattr(leaf.owner, "as_linear") and leaf.name == "weight"
        if leaf.owner is None or placement is None or len(axes) != 2 or leaf.path.rsplit(".", 2)[0] in adapted:
            continue
        if placement.kind == "input-like" and axes[1].infinite and (embeds or placement.start.law == "unknown"):
            result.append(leaf)
    return result


def tied_by_code(model: Any, candidates: Sequence[Leaf]) -> tuple[Leaf | None, bool]:
    """The first of some tables that the model's own code reads out with.

    Returns:
        The table, and whether it is known by a product with its weight alone, as relative positions are used too.
    """
    by_class = {kind: _uses(kind) for kind in dict.fromkeys(type(module) for _, module in modules(model))}
    exact = {name for uses in by_class.values() for name in uses.exact}
    beside = {name for uses in by_class.values() for name in uses.beside}
    pairs = {pair for uses in by_class.values() for pair in uses.tables}
    embeddings = [leaf for leaf in candidates if hasattr(leaf.owner, "as_linear")]
    for names in (exact, beside):
        for leaf in embeddings:
            above = leaf.path.split(".")[:-1]
            if names & set(above[-1:] if names is exact else above):
                return leaf, False
    for leaf in candidates:
        above = leaf.path.split(".")[:-1]
        if (above and (above[-1], leaf.name) in pairs) or ("self", leaf.name) in by_class[type(leaf.owner)].tables:
            return leaf, True
    return None, False


def _uses(kind: type) -> Uses:
    if hasattr(kind, "as_linear"):
        return Uses(frozenset(), frozenset(), frozenset())
    own = [function for several in functions_of(kind).values() for function in several]
    helpers = helpers_of(own)
    reading = {h.__name__ for h in helpers if any("as_linear" in code.co_names for code in codes(h))}
    exact: set[str] = set()
    beside: set[str] = set()
    turned: set[tuple[str, str]] = set()
    for code in (code for function in (*own, *helpers) for code in codes(function)):
        steps = list(get_instructions(code))
        if "as_linear" in code.co_names:
            exact |= {str(a.argval) for a, b in pairwise(steps) if b.argval == "as_linear"}
        if {"as_linear", *reading} & {*code.co_names, *code.co_freevars}:
            beside |= {*code.co_names, *(const for const in code.co_consts if isinstance(const, str))}
        turned |= set(_turned(steps, code))
    return Uses(frozenset(exact), frozenset(beside), frozenset(turned))


def _turned(steps: Sequence[Instruction], code: CodeType) -> Iterator[tuple[str, str]]:
    """Every ``name.attribute`` that is turned or given to a product: others may be look-ups, or questions of dtype."""
    myself = code.co_varnames[:1]
    aliases: dict[str, tuple[str, str]] = {}
    products = _within_products(steps)
    # A subscript with a word is an attribute; its instruction stands between the word and what is done with it.
    kept = [n for n, s in enumerate(steps) if not (s.opname in _SUBSCRIPTS and isinstance(steps[n - 1].argval, str))]
    for here, there, after in zip(kept, kept[1:], [*kept[2:], -1], strict=False):
        name, attribute = _last(steps[here]), steps[there].argval
        if not isinstance(name, str):
            continue
        # A plain local: w = embed.weight, then w.T or matmul(h, w).
        if name in aliases and (here in products or attribute in _TURNS):
            yield aliases[name]
        if not isinstance(attribute, str):
            continue
        pair = ("self" if (name,) == myself else name, attribute)
        following = steps[after]
        if following.opname.startswith("STORE_FAST"):
            aliases[_first(following)] = pair
        if following.argval in _TURNS or there in products:
            yield pair


def _first(step: Instruction) -> Any:
    # Python 3.13 loads and stores two locals at once.
    return step.argval[0] if isinstance(step.argval, tuple) else step.argval


def _last(step: Instruction) -> Any:
    return step.argval[-1] if isinstance(step.argval, tuple) and step.argval else step.argval


def _within_products(steps: Sequence[Instruction]) -> set[int]:
    """The instructions that load the arguments of a product."""
    inside: set[int] = set()
    for start, step in enumerate(steps):
        if step.argval not in PRODUCTS or not step.opname.startswith("LOAD"):
            continue
        depth = 0
        for n in range(start + 1, len(steps)):
            depth += stack_effect(steps[n].opcode, steps[n].arg, jump=False)
            if depth < 0 or steps[n].opname.startswith("RETURN"):
                break
            inside.add(n)
    return inside
