"""The parameters of a model, a tree or a mapping of shapes, each with its path and the module that holds it.

Nothing here evaluates an array or imports MLX: an MLX module is a ``dict`` that knows its ``named_modules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Leaf:
    """One parameter.

    Args:
        path: Dotted path as ``mlx.utils.tree_flatten`` writes it.
        value: The array, or its shape where only shapes were given.
        owner: The module that holds it, ``None`` in a bare tree.
        name: Its path below the owner, nearly always one attribute name.
    """

    path: str
    value: Any
    owner: Any = None
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its axes."""
        return tuple(getattr(self.value, "shape", self.value))

    @property
    def frozen(self) -> bool:
        """Whether its module keeps it from training."""
        return self.owner is not None and self.name.split(".")[0] in getattr(self.owner, "_no_grad", ())

    @property
    def classes(self) -> tuple[str, ...]:
        """Its module's classes, nearest first, each as ``root package:class name``."""
        if self.owner is None:
            return ()
        return tuple(f"{c.__module__.split('.')[0]}:{c.__name__}" for c in type(self.owner).__mro__)


def is_module(value: object) -> bool:
    """Whether ``value`` is an MLX module (of any version, without importing MLX)."""
    return isinstance(value, dict) and hasattr(value, "named_modules")


def named(value: object) -> str:
    """What a message says of a value: only the type of what would fill a page, such as a whole model."""
    text = repr(value)
    if is_module(value):
        return f"a model ({type(value).__name__})"
    return text if len(text) <= _SHOWN else f"a {type(value).__name__}"


def leaves(tree: object) -> tuple[Leaf, ...]:
    """Every parameter of ``tree`` in its own order.

    Args:
        tree: An MLX module, a tree of arrays (dicts, lists, tuples), or shapes (tuples of whole numbers) by path.
    """
    return tuple(_walk(tree, "", None, ""))


def modules(tree: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every module of a model with its path, the outer ones first."""
    if is_module(tree):
        yield path, tree
    for key, value in _children(tree):
        yield from modules(value, f"{path}.{key}" if path else str(key))


def skeleton(path: str) -> str:
    """A path with ``*`` for every place in a list."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def _children(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        hidden = is_module(value)
        yield from ((str(k), v) for k, v in value.items() if not (hidden and str(k).startswith("_")))
    elif isinstance(value, list | tuple):
        yield from ((str(i), v) for i, v in enumerate(value))


def _walk(value: object, path: str, owner: Any, name: str) -> Iterator[Leaf]:
    if is_module(value):
        owner, name = value, ""
    elif hasattr(value, "shape") or (owner is None and path and _is_shape(value)):
        yield Leaf(path, value, owner, name)
        return
    for key, child in _children(value):
        yield from _walk(child, f"{path}.{key}" if path else key, owner, f"{name}.{key}" if name else key)


def _is_shape(value: object) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return all(isinstance(n, int) and not isinstance(n, bool) for n in value) and (value != [])
