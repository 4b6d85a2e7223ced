"""Fingerprints: plans as canonical plain values, so that two that mean the same state have the same digits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from typing import Any


def fingerprint(content: Any) -> str:
    """Sixteen hex digits of plain values and nodes, the same in every process and on every version of Python."""
    return hashlib.sha256(canonical_json(canonical(content)).encode()).hexdigest()[:16]


def canonical(value: Any) -> Any:
    """A node as plain values, without places and without what is at its default."""
    if is_dataclass(value):
        kept = [each for each in fields(value) if each.compare]
        stated = {each.name: getattr(value, each.name) for each in kept}
        return {
            "is": type(value).__name__,
            **{each.name: canonical(stated[each.name]) for each in kept if _is_stated(each.default, stated[each.name])},
        }
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, dict):
        return {name: canonical(each) for name, each in value.items()}
    return [canonical(each) for each in value] if isinstance(value, tuple | list) else value


def _is_stated(default: Any, value: Any) -> bool:
    return default is MISSING or default != value


def canonical_json(value: Any) -> str:
    """JSON with one way to write everything."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
