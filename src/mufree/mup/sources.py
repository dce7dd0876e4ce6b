"""Where a model's own source text makes the tied logits, as syntax trees; nothing where there is no source."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from .functions import KNOWN_PACKAGES, functions_of, helpers_of, root
from .tying import PRODUCTS
from .walk import Leaf, is_module, modules

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One function of a model.

    Args:
        function: It.
        tree: Its syntax tree.
        owner: The module whose method it is; ``None`` for a helper.
        above: For every node of the tree the one that holds it.
    """

    function: FunctionType
    tree: _Function
    owner: Any
    above: dict[ast.AST, ast.AST]

    def climb(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Each node that holds another, from ``node`` up, with the one that it holds."""
        while node in self.above:
            node, below = self.above[node], node
            yield node, below

    def nodes(self) -> Iterator[ast.AST]:
        """Every node."""
        return ast.walk(self.tree)

    def attribute(self, node: ast.AST) -> Any:
        """What ``self.a.b`` is in the model; ``None`` where that is not known."""
        steps: list[str] = []
        while isinstance(node, ast.Attribute):
            steps.append(node.attr)
            node = node.value
        first = self.tree.args.args[:1]
        if not (isinstance(node, ast.Name) and first and node.id == first[0].arg):
            return None
        value = self.owner
        for step in reversed(steps):
            value = getattr(value, step, None)
        return value


def sources(model: Any) -> tuple[Source, ...]:
    """The functions of a model's own classes, and their helpers, as far as their source can be had."""
    found: dict[int, Source] = {}
    for _, module in modules(model):
        if root(type(module)) in KNOWN_PACKAGES:
            continue
        own = [function for several in functions_of(type(module)).values() for function in several]
        for function, owner in (*((f, module) for f in own), *((f, None) for f in helpers_of(own))):
            parsed = _parsed(function)
            if parsed is not None:
                found.setdefault(id(function), Source(function, parsed[0], owner, parsed[1]))
    return tuple(found.values())


@lru_cache(maxsize=512)
def _parsed(function: FunctionType) -> tuple[_Function, dict[ast.AST, ast.AST]] | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    first = tree.body[0] if tree.body else None
    if not isinstance(first, _Function):
        return None
    return first, {child: node for node in ast.walk(first) for child in ast.iter_child_nodes(node)}


def head_expressions(model: Any, found: Sequence[Source], tied: Leaf) -> list[tuple[Source, ast.expr, ast.expr | None]]:
    """Every expression whose value is the tied head's logits, and what they are made from where it says so."""
    result: list[tuple[Source, ast.expr, ast.expr | None]] = []
    for source in found:
        names = _names_of_table(source, tied)
        for node in source.nodes():
            made_from = _reads_out(node, tied, names)
            if made_from is not None and isinstance(node, ast.expr):
                result.append((source, node, made_from if isinstance(made_from, ast.expr) else None))
    # Methods and helpers that return the logits, and modules whose call does, hand them on.
    handed: dict[str, int | None] = {}
    for _ in range(3):
        new: dict[str, int | None] = {}
        for source, _node, made_from in result:
            name = source.function.__name__
            new |= {name: _argument(source, made_from)} if name != "__init__" else {}
            if name == "__call__":
                paths = [path for path, module in modules(model) if path and module is source.owner]
                new |= dict.fromkeys((path.rpartition(".")[2] for path in paths), _argument(source, made_from))
        new = {name: place for name, place in new.items() if name not in handed}
        handed |= new
        for source in found:
            for node in source.nodes():
                if isinstance(node, ast.Call) and _callee(node) in new:
                    place = new[_callee(node)]
                    given = node.args[place] if place is not None and place < len(node.args) else None
                    result.append((source, node, given))
    return result


def _argument(source: Source, made_from: ast.expr | None) -> int | None:
    """Which argument of a call the head reads out from, if it is one."""
    names = [argument.arg for argument in source.tree.args.args]
    if not isinstance(made_from, ast.Name) or made_from.id not in names:
        return None
    return names.index(made_from.id) - (source.owner is not None)


def _names_of_table(source: Source, tied: Leaf) -> set[str]:
    """Locals that hold the embedding's weight, or its transpose."""
    holding = [
        node
        for node in source.nodes()
        if isinstance(node, ast.Assign)
        and (_is_table(node.value, tied) or _is_table(getattr(node.value, "value", None), tied))
    ]
    return {target.id for node in holding for target in node.targets if isinstance(target, ast.Name)}


def _is_table(node: ast.AST | None, tied: Leaf) -> bool:
    """Whether this is ``….embed.weight`` or ``….embed["weight"]``."""
    above = tied.path.split(".")[:-1]
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        attribute = node.slice.value
    elif isinstance(node, ast.Attribute):
        attribute = node.attr
    else:
        return False
    inner = node.value
    name = inner.attr if isinstance(inner, ast.Attribute) else inner.id if isinstance(inner, ast.Name) else ""
    return attribute == tied.name and (not above or name in (above[-1], "self"))


def _reads_out(node: ast.AST, tied: Leaf, names: set[str]) -> ast.expr | bool | None:
    """What an expression reads out from, True if that is not clear; ``None`` if it reads out from nothing."""

    def holds(part: ast.AST) -> bool:
        return any(_is_table(n, tied) or (isinstance(n, ast.Name) and n.id in names) for n in ast.walk(part))

    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        if holds(node.right) and not _is_product(node.right):
            return node.left
        return True if holds(node.left) and not _is_product(node.left) else None
    if not isinstance(node, ast.Call):
        return None
    callee = _callee(node)
    if callee == "as_linear":
        return node.args[0] if node.args else True
    if callee in PRODUCTS[:5]:
        without = [part for part in node.args if not holds(part) and not isinstance(part, ast.Constant)]
        if len(without) < sum(not isinstance(part, ast.Constant) for part in node.args):
            return without[0] if len(without) == 1 else True
    return None


def _is_product(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)


def _callee(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_call_of_module(source: Source, node: ast.AST) -> Any:
    """The module that a call calls, ``None`` if it calls something else."""
    value = source.attribute(node.func) if isinstance(node, ast.Call) else None
    return value if is_module(value) else None
