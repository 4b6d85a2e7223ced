"""Pseudonyms: what stands for a value where rows are grouped and joined by it, and says nothing of it.

Equal values of one domain have equal pseudonyms, for as long as the vault is there; without the vault nobody can make one, or try values until one
fits. A domain is by default the name of the field, so ``email`` of two topics can be joined.
"""

from __future__ import annotations

import base64
import hmac
from typing import Any

import msgspec

from millstream.vault.keys import Keys

SUFFIX = "_pseudonym"
"""What the field with a pseudonym is called: that of the value, and this."""

_BYTES = 16


def pseudonym(vault: Keys, domain: str, value: Any) -> str:
    """What stands for a value of a domain: 22 letters, digits, ``-`` and ``_``. A number and the text of it are two values."""
    tag = hmac.digest(vault.root(f"pseudonym\0{domain}"), msgspec.json.encode(value, order="sorted"), "sha256")
    return base64.urlsafe_b64encode(tag[:_BYTES]).rstrip(b"=").decode()
