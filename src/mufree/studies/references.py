"""What functions are, as far as it can be written down: their source, and everything that they refer to.

Two closures of one source differ in a variable, two partials in an argument, two runs of a notebook in a global. So
these are followed, by name: closures, defaults, arguments of partials, bound objects, globals, and the methods of
classes. Functions of installed packages are their name.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import mlx.core as mx
import numpy as np

CHANGES = "changes by itself"
"""In place of a value that calls change, such as a cache: it tells no study from another."""

_SHORT, _DEEP = 60, 50
_INSTALLED = ("mufree", "mlx", "mlx_lm", "numpy")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)


def references(**roots: Any) -> dict[str, str]:
    """Name → source or value of everything that functions, classes and objects refer to.

    Args:
        **roots: Where to begin, by name.
    """
    reader = _Reader()
    for name, value in roots.items():
        reader.read(name, value)
    return reader.found


def steady(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """References as they were, with what calls in between have changed marked so."""
    return {name: value if after.get(name) == value else CHANGES for name, value in before.items()} | {
        name: CHANGES for name in after if name not in before
    }


class _Reader:
    """Follows references; each object once, under the first name that it is met by."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._seen: dict[int, Any] = {}
        self._inside: list[int] = []

    def read(self, name: str, value: Any) -> None:
        """Write down one value under a name."""
        self.found[name] = self._text(name, value)

    def _text(self, name: str, value: Any) -> str:
        if isinstance(value, _PLAIN):
            return _short(repr(value))
        if isinstance(value, mx.array | np.ndarray):
            return f"array {hash_arrays({'': value})}"
        if id(value) in self._inside or len(self._inside) > _DEEP:
            return "as outside"
        self._inside.append(id(value))
        try:
            return self._whole(name, value)
        finally:
            self._inside.pop()

    def _whole(self, name: str, value: Any) -> str:
        if isinstance(value, Mapping):
            self._class(f"{name}.__class__", type(value))
            entries = sorted((repr(key), f"{name}[{key!r}]", child) for key, child in value.items())
            return _short(f"{{{', '.join(f'{key}: {self._text(path, child)}' for key, path, child in entries)}}}")
        if isinstance(value, list | tuple):
            return _short(f"[{', '.join(self._text(f'{name}[{n}]', child) for n, child in enumerate(value))}]")
        if isinstance(value, set | frozenset):
            return _short(f"{{{', '.join(sorted(self._text(f'{name}{{}}', child) for child in value))}}}")
        return self._reference(name, value)

    def _reference(self, name: str, value: Any) -> str:
        if id(value) in self._seen:
            return "as above"
        self._seen[id(value)] = value
        if isinstance(value, partial):
            self._all(name, {"func": value.func, "args": value.args, "keywords": value.keywords})
            return "partial"
        if isinstance(value, MethodType):
            self._all(name, {"__self__": value.__self__, "__func__": value.__func__})
            return "method"
        if isinstance(value, FunctionType):
            return self._function(name, value)
        if isinstance(value, type):
            return self._class(name, value)
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None:
            self._all(name, {"__wrapped__": wrapped})
        elif not isinstance(value, ModuleType | BuiltinFunctionType):
            self._object(name, value)
        return _named(value)

    def _function(self, name: str, function: FunctionType) -> str:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        inner = {variable: _content(cell) for variable, cell in cells if variable != "__class__"}
        self._all(name, inner | {"__defaults__": function.__defaults__, "__kwdefaults__": function.__kwdefaults__})
        if _installed(function.__module__):
            return _named(function)
        self._all(name, dict(_globals(function)))
        return _source(function, function.__code__)

    def _class(self, name: str, kind: type) -> str:
        if _installed(kind.__module__) or (name.endswith("__class__") and id(kind) in self._seen):
            return _named(kind)
        self._seen[id(kind)] = kind
        for base in kind.__bases__:
            if not _installed(base.__module__):
                self.read(f"{name}({base.__name__})", base)
        own = {key: value for key, value in vars(kind).items() if _telling(key, value)}
        self._all(name, {key: getattr(value, "__func__", getattr(value, "fget", value)) for key, value in own.items()})
        text = _source(kind, None)
        if name.endswith("__class__"):
            self.found[name] = text
        return text

    def _object(self, name: str, value: Any) -> None:
        """A dataclass, or an object of a class that is no package's; others may hold anything."""
        if is_dataclass(value):
            self._all(name, {field.name: getattr(value, field.name, None) for field in fields(value)})
        elif not _installed(type(value).__module__):
            self._all(name, getattr(value, "__dict__", {}))
        self._class(f"{name}.__class__", type(value))

    def _all(self, name: str, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            if not (key.startswith("__") and value in (None, (), {})):
                self.read(f"{name}.{key}", value)


def _globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that a function uses, and what it takes from modules that are nobody's package."""
    space = function.__globals__
    for code in _codes(function.__code__):
        for instruction in dis.get_instructions(code):
            if instruction.opname not in ("LOAD_GLOBAL", "LOAD_NAME") or instruction.argval not in space:
                continue
            name, value = instruction.argval, space[instruction.argval]
            if isinstance(value, ModuleType):
                taken = () if _installed(value.__name__) else code.co_names
                yield from ((f"{name}.{each}", getattr(value, each)) for each in taken if hasattr(value, each))
            else:
                yield name, value


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def _telling(key: str, value: Any) -> bool:
    if isinstance(value, FunctionType | classmethod | staticmethod | property):
        return True
    return not key.startswith("__") and isinstance(value, (*_PLAIN, list, tuple, dict, mx.array, np.ndarray))


def _installed(module: str | None) -> bool:
    """Whether a module is of an installed package, mufree or Python itself, whose versions are kept with each cell."""
    root = (module or "builtins").partition(".")[0]
    if root in _INSTALLED or root in sys.stdlib_module_names - {"__main__"}:
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _source(thing: Callable[..., Any], code: CodeType | None) -> str:
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError):
        text = "" if code is None else f"{code.co_code!r} {[c for c in code.co_consts if isinstance(c, _PLAIN)]!r}"
    return f"{_named(thing)} {_hash(text)}"


def _named(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:20]}… {_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hash_arrays(arrays: Mapping[str, Any]) -> str:
    """A hash of arrays by path, of their shapes, dtypes and bits."""
    found = hashlib.sha256()
    for path, value in sorted(arrays.items()):
        array = np.asarray(value.astype(mx.float32) if isinstance(value, mx.array) else value)
        array = np.asarray(repr(value)) if array.dtype == object else array
        found.update(f"{path} {array.shape} {array.dtype}".encode() + array.tobytes())
    return found.hexdigest()[:16]
