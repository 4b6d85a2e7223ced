"""AES-256-GCM: bytes into a box that only its key opens, and that says when somebody has touched it.

A box is a random nonce, the ciphertext and its tag. ``bound`` are bytes that a box is bound to and does not hold: it opens with the same
ones alone. No error here holds a key or what was in a box.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from millstream.errors import MachineError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY = 32
"""Bytes of a key."""

_NONCE = 12


class WrongBox(Exception):
    """A box that a key does not open: another key, other bytes that it is bound to, or a box that was changed."""


class Cipher:
    """One key, ready for use. What is printed of it is nothing."""

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes) -> None:
        self._cipher = _aes(key)

    def box(self, plain: bytes, bound: bytes) -> bytes:
        """Close bytes in a box."""
        nonce = secrets.token_bytes(_NONCE)
        closed: bytes = self._cipher.encrypt(nonce, plain, bound)
        return nonce + closed

    def open(self, box: bytes, bound: bytes) -> bytes:
        """Give what is in a box; WrongBox if this key does not open it."""
        from cryptography.exceptions import InvalidTag

        try:
            plain: bytes = self._cipher.decrypt(box[:_NONCE], box[_NONCE:], bound)
        except (InvalidTag, ValueError):  # ValueError: too short to be one
            raise WrongBox from None
        return plain

    def __repr__(self) -> str:
        return "<Cipher>"

    def __reduce__(self) -> str:
        raise TypeError("a key does not travel to other processes")


def _aes(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise MachineError("a vault needs cryptography", hint="pip install 'millstream[vault]'") from error
    return AESGCM(key)
