"""What tells today's code from that which made a snapshot: a digest of what the interpreter runs.

It goes over compiled code, not text: a file may have changed since it was loaded. Functions, classes and constants of the same module
that a function names are in it too, and what those name. What it does not see, helpers from other modules, the documentation says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

_GENERATED = ("__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__replace__")
"""What a dataclass makes of its fields, which are in the digest themselves."""


def digest_of_code(*things: Any) -> str:
    """Sixteen hex digits of functions, classes and plain values."""
    seen: set[int] = set()
    said = [line for each in things for line in _said(each, seen)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _said(thing: Any, seen: set[int]) -> Iterator[str]:
    """Everything that a thing is made of, as text."""
    if isinstance(thing, staticmethod | classmethod | MethodType):
        thing = thing.__func__
    if isinstance(thing, property):
        thing = thing.fget
    if id(thing) in seen:
        return
    if isinstance(thing, FunctionType | type | partial) or (
        callable(thing) and not isinstance(thing, BuiltinFunctionType)
    ):
        seen.add(id(thing))
    if isinstance(thing, FunctionType):
        yield from _function(thing, seen)
    elif isinstance(thing, type):
        yield from _class(thing, seen)
    elif isinstance(thing, partial):
        for each in (thing.func, *thing.args, *(part for pair in sorted(thing.keywords.items()) for part in pair)):
            yield from _said(each, seen)
    elif hasattr(thing, "__wrapped__"):
        yield from _said(thing.__wrapped__, seen)
    elif callable(thing) and not isinstance(thing, BuiltinFunctionType):
        yield from _class(type(thing), seen)
        for each in (part for pair in sorted(getattr(thing, "__dict__", {}).items()) for part in pair):
            yield from _said(each, seen)
    else:
        yield _plain(thing)


def _function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _code(function.__code__)
    yield repr((function.__defaults__, function.__kwdefaults__))
    for kind, each in getattr(function, "registry", {}).items():  # of functools.singledispatch
        yield kind.__qualname__
        yield from _said(each, seen)
    for cell in function.__closure__ or ():
        yield from _said(cell.cell_contents, seen)
    for name in sorted(set(_names(function.__code__))):
        named = function.__globals__.get(name)
        if getattr(named, "__module__", None) == function.__module__ or isinstance(
            named, int | str | tuple | frozenset
        ):
            yield from _said(named, seen)


def _class(kind: type, seen: set[int]) -> Iterator[str]:
    yield kind.__qualname__
    if is_dataclass(kind):
        yield repr([(each.name, str(each.type), _plain(each.default)) for each in fields(kind)])
    for name, each in sorted(vars(kind).items()):
        if name not in _GENERATED and isinstance(each, FunctionType | staticmethod | classmethod | property):
            yield from _said(each, seen)


def _code(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _code(each)
        else:
            yield _plain(each)


def _names(code: CodeType) -> Iterable[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _plain(value: Any) -> str:
    """A value as text that is the same in every process."""
    if isinstance(value, frozenset | set):
        return f"set {sorted(map(_plain, value))}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} {list(map(_plain, value))}"
    said = repr(value)
    return type(value).__qualname__ if " at 0x" in said else f"{type(value).__name__} {said}"
