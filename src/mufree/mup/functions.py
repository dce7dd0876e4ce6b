"""The functions that a model's forward pass is made of, as far as they can be reached without running it.

A class's own, those it overrides and still calls, and the helpers that they call by name from the same package.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

# Classes from here are layers and families that are known by other means.
KNOWN_PACKAGES = ("mlx", "mlx_lm", "mufree", "builtins")
_WRAPPED = ("__func__", "fget", "func", "__wrapped__")


def root(of: type | FunctionType) -> str:
    """The top-level package that something was defined in."""
    return (of.__module__ or "").split(".")[0]


def functions_of(kind: type) -> dict[str, list[FunctionType]]:
    """The functions of a class by name, those it overrides only where what overrides them calls them still."""
    found: dict[str, list[FunctionType]] = {}
    above: list[tuple[str, CodeType]] = []
    for base in kind.__mro__:
        if base is not kind and root(base) in ("mlx", "builtins"):
            continue
        mine = []
        for name, value in vars(base).items():
            function = _function(value)
            if function is None or (name in found and not _called(name, base, above)):
                continue
            found.setdefault(name, []).append(function)
            mine += [(name, code) for code in codes(function)]
        above += mine
    return found


def helpers_of(functions: list[FunctionType]) -> list[FunctionType]:
    """What those functions call by name, from modules of their own package, and what that calls in turn."""
    found: dict[int, FunctionType] = {}
    todo = list(functions)
    while todo:
        function = todo.pop()
        package = root(function)
        if package in KNOWN_PACKAGES:
            continue
        for value in _named(function):
            helper = _function(value)
            if helper is not None and root(helper) == package and id(helper) not in found:
                found[id(helper)] = helper
                todo.append(helper)
    return [helper for helper in found.values() if helper not in functions]


def codes(function: FunctionType) -> Iterator[CodeType]:
    """The code of a function and of every lambda, comprehension and function inside it."""
    todo = [function.__code__]
    while todo:
        code = todo.pop()
        yield code
        todo += [const for const in code.co_consts if isinstance(const, CodeType)]


def _named(function: FunctionType) -> Iterator[Any]:
    names = {name for code in codes(function) for name in code.co_names}
    spaces = [function.__globals__]
    # A helper module of one's own: helpers.head(model, h).
    values = (function.__globals__.get(name) for name in names)
    own = [value for value in values if isinstance(value, ModuleType)]
    spaces += [vars(module) for module in own if module.__name__.split(".")[0] == root(function)]
    for space in spaces:
        yield from (space[name] for name in names if name in space)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _function(value: Any) -> FunctionType | None:
    """The plain function behind a method, a property or a decorator."""
    for _ in range(8):
        if isinstance(value, FunctionType):
            inner = getattr(value, "__wrapped__", None)
            if inner is None:
                return value
        else:
            # Only of the kinds that wrap a function; an array or module has attributes of its own by these names.
            wrapper = isinstance(value, staticmethod | classmethod | property) or hasattr(type(value), "__get__")
            if not wrapper or isinstance(value, type):
                return None
            inner = next((i for n in _WRAPPED if (i := getattr(value, n, None))), None)
        value = inner
    return None


def _called(name: str, base: type, above: list[tuple[str, CodeType]]) -> bool:
    """Whether what overrides ``base``'s function calls it: as ``super().name`` or ``Base.name``."""
    for own, code in above:
        names = {*code.co_names, *code.co_freevars}
        if names & {"super", base.__name__} and (own == name or name in names):
            return True
    return False
