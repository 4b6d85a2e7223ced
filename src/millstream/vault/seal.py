"""Tokens: a sealed value as text, which can be copied, stored and sent, and is read by whoever has the vault.

A token is ``sealed:1:`` and base64: the id of the vault, the id of the subject's key, the topic and the field where it was sealed, a nonce, the
ciphertext. All that stands before the nonce is bound to the ciphertext: a token whose key or origin was exchanged does not open. The value is
JSON before it is sealed, so it comes back as what it was.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec

from millstream.errors import SealBroken, VaultError
from millstream.vault.cipher import WrongBox
from millstream.vault.keys import ID, VAULT_ID, Key, Keys, Missing, Shredded

PREFIX = "sealed:1:"
ERASED = "erased"
"""What a reader sees of a value whose key was deleted."""


class Origin(NamedTuple):
    """Where a value was sealed."""

    topic: str
    field: str

    def __str__(self) -> str:
        return f"{self.topic}.{self.field}"


class Token(NamedTuple):
    """A token, taken apart; nothing of it is checked before it is opened."""

    vault: bytes
    key: bytes
    origin: Origin
    head: bytes
    box: bytes


class _Erased:
    """A value that can never be read again."""

    def __repr__(self) -> str:
        return ERASED


GONE = _Erased()


def is_token(value: Any) -> bool:
    """Whether a value looks like a token."""
    return isinstance(value, str) and value.startswith(PREFIX)


def seal(vault: Keys, key: Key, origin: Origin, value: Any) -> str:
    """Seal a value that JSON can hold."""
    topic, field = origin.topic.encode(), origin.field.encode()
    if len(topic) > 0xFF or len(field) > 0xFFFF:
        raise VaultError(f"{origin}: expected a name of a field of up to 65,535 bytes; found {len(field):,}")
    head = vault.id + key.id + bytes([len(topic)]) + topic + len(field).to_bytes(2, "big") + field
    box = key.cipher.box(msgspec.json.encode(value), PREFIX.encode() + head)
    return PREFIX + base64.urlsafe_b64encode(head + box).rstrip(b"=").decode()


def parse(text: str, where: str = "") -> Token:
    """Take a token apart; SealBroken, about the field ``where``, if it is none."""
    try:
        body = text.removeprefix(PREFIX)
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        vault, key, at = data[:VAULT_ID], data[VAULT_ID : VAULT_ID + ID], VAULT_ID + ID
        topic_end = at + 1 + data[at]
        field_start = topic_end + 2
        field_end = field_start + int.from_bytes(data[topic_end:field_start], "big")
        origin = Origin(data[at + 1 : topic_end].decode(), data[field_start:field_end].decode())
        if not text.startswith(PREFIX) or field_end > len(data):
            raise ValueError
    except (binascii.Error, ValueError, IndexError):
        raise SealBroken(
            f"{where or 'token'}: this is no token: it was changed or cut off after it was sealed", hint=_CHANGED
        ) from None
    return Token(vault, key, origin, data[:field_end], data[field_end:])


def open_token(vault: Keys, text: str, expected: Collection[Origin] | None = None, where: str = "") -> Any:
    """Give the value in a token, or ``GONE`` if its key was deleted.

    ``expected`` are the origins that a token at this place may have, None for any. SealBroken, about ``where``, if it was changed, stems from
    elsewhere or is of another vault.
    """
    token = parse(text, where)
    what = where or str(token.origin)
    if token.vault != vault.id:
        raise SealBroken(
            f"{what}: sealed with the keys of vault {token.vault.hex()}; this is vault {vault.id.hex()}",
            hint=f"name the file of that vault as keys in [vault] of millstream.toml; {vault.path} is another one",
        )
    if expected is not None and token.origin not in expected:
        there = " or ".join(sorted(map(str, expected)))
        raise SealBroken(
            f"{what}: found a token that was sealed as {token.origin}; expected {there}",
            hint="it was moved here from there: look for who wrote this record",
        )
    try:
        plain = vault.cipher(token.key).open(token.box, PREFIX.encode() + token.head)
    except Shredded:
        return GONE
    except Missing:
        raise SealBroken(
            f"{what}: its key {token.key.hex()} is not in the vault, and was not deleted from it",
            hint="was the vault put back from a backup that is older than the key? or was the token changed?",
        ) from None
    except WrongBox:
        raise SealBroken(
            f"{what}: the tag is wrong: the token was changed after it was sealed, or given another key, topic or field",
            hint=_CHANGED,
        ) from None
    return msgspec.json.decode(plain)


_CHANGED = "look for who wrote it; nothing of it was shown"
