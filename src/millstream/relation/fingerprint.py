"""Fingerprints: plans as canonical plain values, so that two that mean the same state have the same digits.

Fingerprints are stored, so the names in them are frozen: of a class its ``tag``, of a field the name in its metadata under
:data:`STORED`, or its own where there is none. Whoever renames a field writes down there what it was called.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from typing import Any

STORED = "stored"
"""In the metadata of a field that was renamed: its name in what is stored."""


def fingerprint(content: Any) -> str:
    """Sixteen hex digits of plain values and nodes, the same in every process and on every version of Python."""
    return hashlib.sha256(canonical_json(canonical(content)).encode()).hexdigest()[:16]


def canonical(value: Any) -> Any:
    """A node as plain values, without places and without what is at its default."""
    if is_dataclass(value):
        stated = [(each, getattr(value, each.name)) for each in fields(value) if each.compare]
        return {
            "is": _tag(value),
            **{stored_name(each): canonical(said) for each, said in stated if _is_stated(each.default, said)},
        }
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, dict):
        return {name: canonical(each) for name, each in value.items()}
    return [canonical(each) for each in value] if isinstance(value, tuple | list) else value


def digest_of(function: Callable[..., Any]) -> str:
    """What tells a function from another: its text, or its name where there is no text to be had."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(type(function)))}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stored_name(field: Field[Any]) -> str:
    """What a field is called in what is stored."""
    return str(field.metadata.get(STORED, field.name))


def _tag(node: Any) -> str:
    return str(node.tag)


def _is_stated(default: Any, value: Any) -> bool:
    return default is MISSING or default != value


def canonical_json(value: Any) -> str:
    """JSON with one way to write everything."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
