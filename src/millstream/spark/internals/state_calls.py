"""Calls for state made in bursts, over the client of Spark's state server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.errors import PySparkRuntimeError

_BURST = 256
"""Calls for state on their way at once: requests, or their answers, must find room while the other side is busy."""


class Calls:
    """Calls for state, many in one go: all are sent before the first answer is read.

    Spark's client waits for each answer, which takes two switches between processes; its server takes one request after the
    other and does not mind if the next one is there already. Where Spark's client is another than the one this knows,
    calls are made one by one.
    """

    def __init__(self, state: Any) -> None:
        client = getattr(getattr(state, "_mapStateClient", None), "_stateful_processor_api_client", None)
        known = all(hasattr(client, name) for name in ("_receive_proto_message", "_deserialize_from_bytes"))
        self._client = client if known else None

    def all(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Make the calls and give what each one gives."""
        if self._client is None:
            return [call() for call in calls]
        found: list[Any] = []
        for low in range(0, len(calls), _BURST):
            found += self._burst(self._client, calls[low : low + _BURST])
        return found

    def _burst(self, client: Any, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        client._receive_proto_message = lambda: (0, "", b"")  # what the client reads as done, without a value
        try:
            for call in calls:
                call()
        finally:
            del client._receive_proto_message
        answers = [client._receive_proto_message() for _ in calls]
        for status, message, _ in answers:
            if status != 0:
                raise PySparkRuntimeError(f"a call for state failed: {message}")
        return [client._deserialize_from_bytes(value) if value else None for _, _, value in answers]
