"""Calls for state made in bursts, over the client of Spark's state server: all are sent before the first answer is read.

Spark's client waits for each answer, which takes two switches between processes; its server takes one request after the other and
does not mind if the next one is there already. The self-test lets the real client make the same calls both ways, over a socket to
which the answers have been written before.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from millstream.spark.internals.registry import Internal, expect

_BURST = 256
"""Calls for state on their way at once: requests, or their answers, must find room while the other side is busy."""


class Calls:
    """Calls for the state of one map: in bursts if ``pipelined``, and one by one if not, or if its client is another than we know."""

    def __init__(self, state: Any, *, pipelined: bool) -> None:
        client = getattr(getattr(state, "_mapStateClient", None), "_stateful_processor_api_client", None)
        known = all(hasattr(client, name) for name in ("_receive_proto_message", "_deserialize_from_bytes"))
        self._client = client if known and pipelined else None

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


def _test() -> None:
    from pyspark.sql.streaming.map_state_client import MapStateClient
    from pyspark.sql.streaming.proto import StateMessage_pb2
    from pyspark.sql.streaming.stateful_processor import MapState
    from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient

    key, data = StructType([StructField("number", LongType())]), StructType([StructField("data", BinaryType())])
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(1)
        client = StatefulProcessorApiClient(server.getsockname()[1], key)
        client._client_socket.settimeout(1)
        state = MapState(MapStateClient(client, key, data), "segments")
        sent: list[bytes] = []
        send = client._send_proto_message
        client._send_proto_message = lambda message: (sent.append(message), send(message))  # type: ignore[assignment, func-returns-value]
        with server.accept()[0] as answering, client._client_socket:
            values = [client._serialize_to_bytes(data, (text,)) for text in (b"one", b"two")]
            calls: list[Callable[[], Any]] = [partial(state.getValue, (number,)) for number in (1, 2)]
            calls += [partial(state.updateValue, (3,), (b"three",)), partial(state.removeKey, (4,))]
            response: Any = StateMessage_pb2.StateResponse
            told = [response(statusCode=0, value=value).SerializeToString() for value in (*values, b"", b"")]
            results = []
            for pipelined in (False, True):
                answering.sendall(b"".join(len(each).to_bytes(4, "big") + each for each in told))
                results.append(Calls(state, pipelined=pipelined).all(calls))
    expect(results[0] == results[1], f"calls one by one give {results[0]}, in a burst {results[1]}")
    expect(len(sent) == 2 * len(calls), "a call is not one request")
    expect(sent[: len(calls)] == sent[len(calls) :], "a burst sends other requests than calls one by one")


PIPELINED_STATE = Internal("pipelined_state", "each call for state waits for its answer", _test)
