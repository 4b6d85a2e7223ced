"""Where Jackson, the JVM's JSON parser, as Spark sets it, is stricter than ours, and where it is more lenient.

What may lie on the other side of a line is left to Spark.
"""

from __future__ import annotations

import json
import re

SURE = 900
"""A value of no more bytes meets none of its limits: numbers of 1,000 digits, and nesting 1,000 deep. Ours minds neither."""

_MANY_DIGITS = re.compile(rb"[0-9]{900}")
# More than JSON allows: 'text', NaN and the like, half a surrogate.
_LENIENT = re.compile(r"'|NaN|INF|Infinity|\\u")


def may_refuse(value: bytes) -> bool:
    """Whether it may refuse what ours reads."""
    return value.count(b"[") + value.count(b"{") > SURE or _MANY_DIGITS.search(value) is not None


def may_read(text: str) -> bool:
    """Whether it may find an object in text that is not JSON: it never looks beyond the object's end."""
    try:
        json.JSONDecoder().raw_decode(text)
    except ValueError:
        return _LENIENT.search(text) is not None
    return True
