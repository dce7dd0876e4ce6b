"""Walking parameter trees beside trees that may lack some of their leaves.

Paths are those of ``mlx.utils.tree_flatten``. A tree that went through a file may come back with lists where there
were tuples or dicts with digit keys, and shorter where layers have no parameters; both are read as what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import mlx.core as mx


def walk(tree: Any, *others: Any, path: str = "") -> Iterator[tuple[Any, ...]]:
    """Yield ``(path, leaf, *other leaves)`` in the order of ``tree_flatten``; None where another tree ends early."""
    if isinstance(tree, list | tuple):
        children: Any = enumerate(tree)
    elif isinstance(tree, dict):
        children = tree.items()
    else:
        yield (path, tree, *others)
        return
    for key, child in children:
        here = f"{path}.{key}" if path else str(key)
        yield from walk(child, *(_child(other, key) for other in others), path=here)


def is_statistic(path: str) -> bool:
    """Whether a leaf is a running statistic by its name: measured, not trained, and no average of it means anything."""
    return path.rpartition(".")[2] in ("running_mean", "running_var")


def trained(*trees: Any) -> Iterator[tuple[Any, ...]]:
    """As :func:`walk`, without running statistics and leaves that are None."""
    return (entry for entry in walk(*trees) if entry[1] is not None and not is_statistic(entry[0]))


def _child(tree: Any, key: Any) -> Any:
    if isinstance(tree, dict):
        return tree.get(key)
    if isinstance(tree, list | tuple) and str(key).isdigit() and int(key) < len(tree):
        return tree[int(key)]
    return None


def mirror(parameters: Any, state: Any) -> Any:
    """``state`` with a dict at every leaf of ``parameters``; dicts and lists are extended in place."""
    if isinstance(parameters, dict):
        if isinstance(state, list | tuple):
            state = {str(index): child for index, child in enumerate(state)}
        state = state if isinstance(state, dict) else {}
        for key, child in parameters.items():
            state[key] = mirror(child, state.get(key))
        return state
    if isinstance(parameters, list | tuple):
        given = list(state) if isinstance(state, list | tuple) else []
        children = [mirror(child, _child(given, index)) for index, child in enumerate(parameters)]
        children += given[len(parameters) :]
        if isinstance(parameters, list) and isinstance(state, list):
            state[:] = children
            return state
        return _rebuild(parameters, children)
    return state if isinstance(state, dict) else {}


def replace_leaves(tree: Any, values: Mapping[str, mx.array]) -> Any:
    """A copy of ``tree`` with the leaves at the paths of ``values`` replaced."""
    return _map(lambda path, leaf: values.get(path, leaf), tree, "")


def beside(gradients: Any, parameters: Any) -> Any:
    """The part of ``parameters`` that has gradients, in the structure of ``gradients``."""
    found = {path: parameter for path, gradient, parameter in walk(gradients, parameters) if gradient is not None}
    return replace_leaves(gradients, found)


def place(tree: Any, values: Mapping[str, mx.array], path: str = "") -> None:
    """Put arrays into a module or a tree of dicts and lists, by path, in place; tuples in it are replaced."""
    children: Any = list(enumerate(tree)) if isinstance(tree, list) else list(tree.items())
    for key, child in children:
        new = _placed(child, values, f"{path}.{key}" if path else str(key))
        if new is not child:
            tree[key] = new


def _placed(child: Any, values: Mapping[str, mx.array], path: str) -> Any:
    if isinstance(child, tuple):
        children = [_placed(item, values, f"{path}.{index}") for index, item in enumerate(child)]
        unchanged = all(new is old for new, old in zip(children, child, strict=True))
        return child if unchanged else _rebuild(child, children)
    if isinstance(child, dict | list):
        place(child, values, path)
        return child
    return values.get(path, child)


def tracing(array: Any) -> bool:
    """Whether ``array`` is part of a trace, whose values do not exist yet. Otherwise it is evaluated."""
    try:
        mx.eval(array)
    except ValueError:
        return True
    return False


def _map(function: Callable[[str, Any], Any], tree: Any, path: str) -> Any:
    if isinstance(tree, list | tuple):
        children = [
            _map(function, child, f"{path}.{index}" if path else str(index)) for index, child in enumerate(tree)
        ]
        return _rebuild(tree, children)
    if isinstance(tree, dict):
        return {key: _map(function, child, f"{path}.{key}" if path else str(key)) for key, child in tree.items()}
    return function(path, tree)


def _rebuild(like: Any, children: list[Any]) -> Any:
    return type(like)(*children) if hasattr(like, "_fields") else type(like)(children)


def copy_containers(tree: Any) -> Any:
    """The same arrays in new dicts, lists and tuples."""
    return _map(lambda _, leaf: leaf, tree, "")


def assign(target: dict[Any, Any], source: Mapping[Any, Any]) -> None:
    """Make the contents of ``target`` those of ``source``, so that a compiled step which captured it sees them.

    Keys stay in the order of ``target``: a compiled step takes what it captured by position, and would mix arrays up.
    """
    contents = _ordered(target, source)  # first, since source may share containers with target
    target.clear()
    target.update(contents)


def _ordered(like: Any, source: Any) -> Any:
    """A copy of the containers of ``source``, their keys in the order that ``like`` has."""
    if isinstance(source, Mapping):
        known = like if isinstance(like, Mapping) else {}
        keys = dict.fromkeys([*(key for key in known if key in source), *source])
        return {key: _ordered(known.get(key), source[key]) for key in keys}
    if isinstance(source, list | tuple):
        beside = [*(like if isinstance(like, list | tuple) else ()), *[None] * len(source)]
        return _rebuild(source, [_ordered(beside[index], child) for index, child in enumerate(source)])
    return source
