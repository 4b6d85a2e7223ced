"""Values of PostgreSQL, from their text to what JSON has: the same from a snapshot and from the stream.

Numbers that JSON would round, bytes (as base64) and times are text; what no number of JSON can be (``NaN``, ``Infinity``) is text too.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any, TypeAlias

Convert: TypeAlias = Callable[[str], Any]


def boolean(text: str) -> bool:
    """True or false."""
    return text == "t"


def real(text: str) -> float | str:
    """A number, or the text of what is none.

    >>> real("1e-7"), real("-Infinity"), real("NaN")
    (1e-07, '-Infinity', 'NaN')
    """
    number = float(text)
    return number if number - number == 0 else text


def base64_of(text: str) -> str:
    r"""Bytes, which the server writes in hex.

    >>> base64_of(r"\x00ff")
    'AP8='
    """
    return b64encode(bytes.fromhex(text[2:])).decode()


def day_clock(text: str) -> str:
    """A time of a day as ISO 8601 has it; with a zone it is in UTC. What no such text can say stays as it is.

    >>> day_clock("2026-11-19 04:05:06.7+00"), day_clock("2026-11-19 04:05:06"), day_clock("infinity")
    ('2026-11-19T04:05:06.7Z', '2026-11-19T04:05:06', 'infinity')
    >>> day_clock("0044-03-15 00:00:00+00 BC")
    '0044-03-15 00:00:00+00 BC'
    """
    if text[-1:] in "yC":
        return text
    found = text.replace(" ", "T", 1)
    return found[:-3] + "Z" if found.endswith("+00") else found


def array_of(convert: Convert | None, delimiter: str) -> Convert:
    """What reads an array of such values, as lists in lists; where its indices begin is not kept.

    >>> array_of(int, ",")("{{1,NULL},{3,4}}"), array_of(None, ",")('[0:1]={a,"b \\\\"c\\\\""}')
    ([[1, None], [3, 4]], ['a', 'b "c"'])
    """

    def read(text: str) -> list[Any]:
        if text.startswith("["):
            text = text[text.index("=") + 1 :]
        if '"' not in text and "{" not in text[1:]:  # one dimension and nothing quoted, as most are
            parts = text[1:-1].split(delimiter) if len(text) > 2 else []
            return [None if each == "NULL" else convert(each) if convert else each for each in parts]
        return _nested(text, convert, delimiter)

    return read


def _nested(text: str, convert: Convert | None, delimiter: str) -> list[Any]:
    root: list[Any] = []
    open_lists, at = [root], 0
    while at < len(text):
        sign = text[at]
        if sign == "{":
            inner: list[Any] = []
            open_lists[-1].append(inner)
            open_lists.append(inner)
            at += 1
        elif sign == "}":
            open_lists.pop()
            at += 1
        elif sign == delimiter:
            at += 1
        elif sign == '"':
            value, at = _quoted(text, at + 1)
            open_lists[-1].append(convert(value) if convert else value)
        else:
            end = at
            while text[end] not in (delimiter, "}"):
                end += 1
            value = text[at:end]
            open_lists[-1].append(None if value == "NULL" else convert(value) if convert else value)
            at = end
    return root[0]  # type: ignore[no-any-return]


def _quoted(text: str, at: int) -> tuple[str, int]:
    parts: list[str] = []
    while (sign := text[at]) != '"':
        if sign == "\\":
            at += 1
        parts.append(text[at])
        at += 1
    return "".join(parts), at + 1
