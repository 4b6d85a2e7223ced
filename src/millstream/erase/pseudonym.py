"""Pseudonyms: the same for the same value under one key, and without the key nobody's.

A key is made for each erasure and is forgotten when that is done, so that nobody can tell later whose pseudonym one was.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from millstream.log.erased import PREFIX

KEY_BYTES = 32
_BITS = {"tinyint": 6, "byte": 6, "smallint": 14, "short": 14, "int": 30, "integer": 30}


def new_key() -> bytes:
    """A key that nobody knows yet."""
    return secrets.token_bytes(KEY_BYTES)


class Pseudonyms:
    """Pseudonyms under one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def key_of(self, topic: str, key: bytes | None, place: str) -> bytes:
        """The key of an erased record: the same for equal keys of a topic, and for each record without a key another."""
        said = b"k" + key if key is not None else b"p" + place.encode()
        return PREFIX + self._digest(topic.encode() + b"\0" + said).hex().encode()

    def value_of(self, kind: str, text: str, column_type: str) -> str | int:
        """What stands in the place of a value that identifies somebody: text, or a number below zero that fits its column."""
        digest = self._digest(f"{kind}\0{text}".encode())
        if column_type.lower() == "string":
            return digest.hex()
        return -1 - int.from_bytes(digest[:8], "big") % (1 << _BITS.get(column_type.lower(), 62))

    def _digest(self, data: bytes) -> bytes:
        return hmac.new(self._key, data, hashlib.sha256).digest()[:16]
