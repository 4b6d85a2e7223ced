"""The connection to a cluster: the client of administration, and why brokers refuse it.

librdkafka keeps trying, and its calls only time out. What brokers said comes by a callback, which is kept here.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from millstream.errors import ConfigError, NotAllowed
from millstream.log.kafka.client import ck, ck_admin, silent, translate

_LOOK = 0.5
_PATIENCE = 5.0  # seconds in which an address must answer
_REFUSED = {
    "SSL routines::certificate verify failed": (
        "its certificate is not of an authority that is trusted here, or of another host",
        "kafka.ssl.ca.location names the authority's certificate, a file in PEM's form",
    ),
    "certificate: SSL alert|alert certificate required|alert unknown ca": (
        "it wants a client's certificate, of an authority that it trusts",
        "kafka.ssl.certificate.location and kafka.ssl.key.location name it and its key, files in PEM's form",
    ),
    "mechanism handshake failed": (
        "it does not support this SASL mechanism",
        "kafka.sasl.mechanisms is one of those that the broker supports; is it the port for users?",
    ),
    "OAUTHBEARER token: .*(invalid_client|invalid_grant|invalid_request|invalid_scope|unauthorized_client)": (
        "the token endpoint gives no token",
        "look at kafka.sasl.oauthbearer.client.id, .scope and what kafka.sasl.oauthbearer.client.secret names",
    ),
    "Authentication failed|authentication failed|invalid_token": (
        "it does not know this user, or not by this password",
        "look at kafka.sasl.username and what kafka.sasl.password names; for tokens at kafka.sasl.oauthbearer.…",
    ),
}
"""What brokers, or TLS, say for certain: what it means, and what to do. Whatever else they say may be of a broker that goes."""


class AdminConnection:
    """A client of administration, with the errors of its connections, which come beside its calls."""

    def __init__(self, client: Mapping[str, str], url: str) -> None:
        self.url = url
        self._heard: deque[Any] = deque(maxlen=16)
        try:
            self.admin: Any = ck_admin.AdminClient({**client, "error_cb": self._heard.append}, logger=silent)
        except ck.KafkaException as error:
            hint = "names are those of librdkafka's configuration, or Java's of the same meaning"
            raise ConfigError(f"settings of the Kafka client: {error.args[0].str()}", hint=hint) from None

    def reach(self) -> None:
        """Wait until a broker answers; NotAllowed as soon as one refuses, LogUnavailable if none does in time."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self.admin.list_topics(timeout=_LOOK)
            except ck.KafkaException as error:
                why = self.why()
                for pattern, (meaning, hint) in _REFUSED.items():
                    if re.search(pattern, why):
                        raise NotAllowed(f"{self.url}: {meaning}: {why}", hint=hint) from None
                if time.monotonic() > deadline:
                    raise translate(error.args[0], self.url, why=why) from error
            else:
                return

    def why(self) -> str:
        """What was said last of connections that failed, if anything; without what differs from try to try."""
        self.admin.poll(0)
        said = [error.str() for error in list(self._heard) if error.name() != "_ALL_BROKERS_DOWN"]
        return re.sub(r"^\w+://[^ ]+: | \(after \d+ms in state \w+\)", "", said[-1]) if said else ""

    def listen(self) -> None:
        """Forget what was said: a call was answered."""
        self.admin.poll(0)
        self._heard.clear()
