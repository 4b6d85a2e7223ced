"""Signatures of webhooks that come in, as Standard Webhooks has them: over the bytes as they came, before anything reads them.

``webhook-signature`` is one or more of ``v1,BASE64``, each an HMAC-SHA256 over ``ID.TIMESTAMP.BODY``. Several secrets may be valid
at once, so that one can be changed for another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence

from millstream.errors import ConfigError
from millstream.serve.refusal import Refusal

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE = 300
"""Seconds that a webhook's clock may be off, to either side."""
_PREFIX = "whsec_"
_MOST = 256  # characters of an id
_TRIED = 10  # signatures that are looked at


def secret_of(text: str) -> bytes:
    """The bytes of a secret, ``whsec_`` and base64.

    >>> secret_of("whsec_" + "A" * 32) == bytes(24)
    True
    """
    try:
        found = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError("a secret of a webhook: found no base64", hint=f"{_PREFIX} and base64") from None
    if not 16 <= len(found) <= 128:
        raise ConfigError(f"a secret of a webhook: found {len(found)} bytes, expected 16 to 128")
    return found


def sign(secret: bytes, identity: str, timestamp: str, body: bytes) -> str:
    """The signature of a webhook."""
    signed = f"{identity}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


def verify(
    secrets: Sequence[bytes], headers: Mapping[str, str], body: bytes, clock: Callable[[], float] = time.time
) -> str:
    """The id of a webhook that one of the secrets has signed, not long ago; Refusal 401 for any other."""
    identity, timestamp = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    if not identity or len(identity) > _MOST or not (timestamp.isascii() and timestamp.isdigit()):
        raise Refusal(401, f"expected the headers {ID}, {TIMESTAMP} and {SIGNATURE}")
    given = headers.get(SIGNATURE, "").split(" ")[:_TRIED]
    wanted = [sign(secret, identity, timestamp, body) for secret in secrets]
    fits = [hmac.compare_digest(one.encode(), other.encode()) for one in wanted for other in given]
    if not any(fits):
        raise Refusal(401, "the signature does not fit")
    if len(timestamp) > 12 or abs(clock() - int(timestamp)) > TOLERANCE:
        raise Refusal(401, f"the webhook is of another time, by more than {TOLERANCE} s")
    return identity
