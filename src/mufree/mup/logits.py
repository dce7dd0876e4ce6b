"""What a model's own code does to its tied logits: a multiplier after them, and what comes last before the head."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .sources import Source, is_call_of_module
from .walk import Leaf, leaves, modules

_Heads = Sequence[tuple[Source, ast.expr, ast.expr | None]]
_FACTOR = (ast.Mult, ast.Div)
_FACTORS = ("multiply", "divide")
# What keeps a factor in its input as a factor of its output.
_KEEPS = ("astype", "reshape", "stop_gradient", "contiguous", "squeeze", "flatten", "unflatten", "expand_dims", "take")
_DEPTH = 12


def unknown_factor(heads: _Heads, found: Sequence[Leaf]) -> str | None:
    """The first factor on the logits whose value at another width cannot be known, as it is written.

    Args:
        heads: The head's expressions, from :func:`~mufree.mup.sources.head_expressions`.
        found: The model's parameters: those are no unknown numbers.
    """
    parameters = {id(leaf.value) for leaf in found}
    for source, node, made_from in heads:
        for factor in (*_factors_of(source, node, set()), *_factors_inside(made_from)):
            if not _is_known(source, factor, parameters):
                return ast.unparse(factor)
    return None


def _factors_of(source: Source, node: ast.AST, followed: set[str]) -> Iterator[ast.expr]:
    """Everything that an expression is multiplied with or divided by, through the locals that it is put in."""
    for over, below in source.climb(node):
        if isinstance(over, ast.BinOp) and isinstance(over.op, _FACTOR):
            yield over.right if below is over.left else over.left
        elif isinstance(over, ast.Call) and _name(over) in _FACTORS:
            yield from (part for part in over.args if part is not below)
        elif isinstance(over, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = over.targets if isinstance(over, ast.Assign) else [over.target]
            for name in {t.id for t in targets if isinstance(t, ast.Name)} - followed:
                yield from _factors_of_local(source, name, over.lineno, {*followed, name})
            return
        elif not _goes_on(over, below):
            return


def _goes_on(over: ast.AST, below: ast.AST) -> bool:
    """Whether a factor of ``over`` is one of the logits ``below`` it: not beyond a loss, a sum or an index."""
    if isinstance(over, ast.Call):
        return _name(over) in (*_KEEPS, "tanh")
    if isinstance(over, ast.BinOp):
        return isinstance(over.op, ast.Add | ast.Sub)
    return isinstance(over, ast.Attribute | ast.IfExp | ast.UnaryOp) or (
        isinstance(over, ast.Subscript) and below is over.value
    )


def _name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _factors_of_local(source: Source, name: str, line: int, followed: set[str]) -> Iterator[ast.expr]:
    for node in source.nodes():
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            if isinstance(node.op, _FACTOR):
                yield node.value
        elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) and node.lineno >= line:
            yield from _factors_of(source, node, followed)


def _factors_inside(made_from: ast.expr | None) -> Iterator[ast.expr]:
    """Numbers on the head's input: an attribute, or a power or a root. A local there may well be an array."""
    while isinstance(made_from, ast.BinOp) and isinstance(made_from.op, _FACTOR):
        for side in (made_from.left, made_from.right):
            root_of = isinstance(side, ast.Call) and getattr(side.func, "attr", "") in ("sqrt", "rsqrt")
            if isinstance(side, ast.Attribute) or root_of or (isinstance(side, ast.BinOp) and _is_power(side)):
                yield side
        made_from = made_from.left


def _is_power(node: ast.BinOp) -> bool:
    numbers = all(isinstance(n, ast.Attribute | ast.Name | ast.Constant | ast.UnaryOp) for n in (node.left, node.right))
    return isinstance(node.op, ast.Pow) or (isinstance(node.op, ast.Div) and numbers)


def _is_known(source: Source, node: ast.AST, parameters: set[int]) -> bool:
    """Whether something is the same number at every width, or a parameter that has a scale of its own."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.UnaryOp):
        return _is_known(source, node.operand, parameters)
    if isinstance(node, ast.BinOp):
        return all(_is_known(source, side, parameters) for side in (node.left, node.right))
    if isinstance(node, ast.Name):
        local = node.id in source.function.__code__.co_varnames
        return not local and _is_number(source.function.__globals__.get(node.id))
    if isinstance(node, ast.Attribute):
        value = source.attribute(node)
        if id(value) in parameters:
            return True
        own = isinstance(node.value, ast.Name) and source.owner is not None and node.attr not in vars(source.owner)
        return own and _is_number(getattr(type(source.owner), node.attr, None))
    if isinstance(node, ast.Call):
        # mx.exp(self.temperature) of a parameter.
        return bool(node.args) and all(_is_known(source, part, parameters) for part in node.args)
    return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class _Code:
    """A model's functions, and whether every factor on the logits is declared."""

    found: Sequence[Source]
    declared: bool


def last_before(heads: _Heads, found: Sequence[Source], declared: bool) -> Any:
    """The module whose output the head reads, ``False`` if that is something else, ``None`` if it cannot be told.

    Args:
        heads: The head's expressions.
        found: The model's functions.
        declared: Whether the factors on the logits are known by the user's word.
    """
    code = _Code(found, declared)
    told = [_last(code, source, made_from, _DEPTH) for source, _, made_from in heads if made_from is not None]
    answers = [answer for answer in told if answer is not None]
    return (answers[0] if all(answer is answers[0] for answer in answers) else False) if answers else None


def _last(code: _Code, source: Source, node: ast.AST, depth: int) -> Any:
    if depth == 0:
        return None
    go = lambda part, where=source: _last(code, where, part, depth - 1)  # noqa: E731
    if isinstance(node, ast.Name):
        value = _assigned(source, node)
        return None if value is None else go(value)
    if isinstance(node, ast.Subscript):
        return go(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, _FACTOR):
        if code.declared:
            return next((answer for part in (node.left, node.right) if (answer := go(part))), False)
        known = [part for part in (node.left, node.right) if _is_known(source, part, set())]
        return go(node.left if known == [node.right] else node.right) if len(known) == 1 else False
    if not isinstance(node, ast.Call):
        return None if isinstance(node, ast.Attribute) else False
    if isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS:
        of_array = source.attribute(node.func) is None and not _is_library(source, node.func.value)
        return go(node.func.value) if of_array else go(node.args[0]) if node.args else False
    module = is_call_of_module(source, node)
    if module is not None:
        return _of_module(code.found, module, node, go)
    return _of_function(code, source, node, depth)


def _of_module(found: Sequence[Source], module: Any, node: ast.Call, go: Any) -> Any:
    while type(module).__name__ == "Sequential" and module.layers:
        module = module.layers[-1]
    if not leaves(module):  # dropout, nn.Identity
        quiet = type(module).__name__.startswith(("Dropout", "Identity"))
        return go(node.args[0]) if quiet and node.args else False
    for source in found:
        if source.owner is not None and type(source.owner) is type(module) and source.function.__name__ == "__call__":
            if "norm" in type(module).__name__.lower():
                return module
            return _returned(source, go)
    # A model in the model, whose code is not looked into.
    return None if any(path for path, _ in modules(module)) else module


def _of_function(code: _Code, source: Source, node: ast.Call, depth: int) -> Any:
    """A method or helper of the model's own: what it returns; any other function changes its input."""
    for other in code.found:
        mine = other.owner is None or other.owner is source.owner or source.owner is None
        if other.function.__name__ == _name(node) and mine and other is not source:
            return _returned(other, lambda part, where: _last(code, where, part, depth - 1))
    return False


def _returned(source: Source, go: Any) -> Any:
    returns = [n.value for n in source.nodes() if isinstance(n, ast.Return) and n.value is not None]
    answers = [go(value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value, source) for value in returns]
    return answers[0] if answers and all(answer is answers[0] for answer in answers) else None


def _assigned(source: Source, name: ast.Name) -> ast.expr | None:
    """What was put last in a local before it is read here."""
    earlier = []
    for node in source.nodes():
        if not isinstance(node, ast.Assign | ast.AugAssign) or _end(node) > (name.lineno, name.col_offset):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name.id for target in targets):
            earlier.append(node)
    return max(earlier, key=_end).value if earlier else None


def _end(node: ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _is_library(source: Source, node: ast.AST) -> bool:
    """Whether a name is a module such as ``mx``."""
    return isinstance(node, ast.Name) and hasattr(source.function.__globals__.get(node.id), "__spec__")
