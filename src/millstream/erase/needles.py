"""What to look for where somebody may still be: names and values of theirs, in every form in which bytes have text.

Looked for is only what means somebody: a name or a value that is too short, or that records of others have too, would be found
everywhere and say nothing. For these the columns that identify the subject are looked at, and not bytes.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

_SHORTEST, _FEWEST_DIGITS = 4, 7


@dataclass(frozen=True)
class Needles:
    """Texts that are somebody's and nobody else's."""

    texts: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], others: Collection[str] = ()) -> Needles:
        """Those of the texts that mean somebody; ``others`` are texts that others have."""
        return cls(tuple(sorted(each for each in set(texts) if tells(each) and each not in others)))

    @cached_property
    def pattern(self) -> re.Pattern[bytes] | None:
        """What finds any of them in bytes, whatever their encoding; None if there are none."""
        forms = sorted({form for text in self.texts for form in _forms(text)}, key=len, reverse=True)
        return re.compile(b"|".join(forms)) if forms else None

    def count(self, data: bytes | memoryview) -> int:
        """How often any of them is in there."""
        pattern = self.pattern
        return 0 if pattern is None else sum(1 for _ in pattern.finditer(data))


def tells(text: str) -> bool:
    """Whether a text can mean one somebody.

    >>> [tells(each) for each in ("ann@example.org", "7", "1234567", "no")]
    [True, False, True, False]
    """
    return len(text) >= (_FEWEST_DIGITS if re.fullmatch(r"[-+0-9.]*", text) else _SHORTEST)


def _forms(text: str) -> Iterable[bytes]:
    """A text in the ways in which bytes may have it; a name within a longer word is another name."""
    plain = text.encode()
    for form in {plain, json.dumps(text)[1:-1].encode(), json.dumps(text, ensure_ascii=False)[1:-1].encode()}:
        yield rb"(?<![0-9A-Za-z])" + re.escape(form) + rb"(?![0-9A-Za-z])"
    for escaped in {plain.hex(), plain.hex().upper()}:
        yield escaped.encode()
    for shift in range(3):  # base64 of a text has one of three forms, by what stands before it, but for its ends
        coded = base64.b64encode(b"\0" * shift + plain + b"\0\0")
        yield re.escape(coded[-(-8 * shift // 6) : 8 * (shift + len(plain)) // 6])
    yield re.escape(text.encode("utf-16-le"))
