"""Where the changes of a view go besides its store: :func:`open_sink` turns a sink's definition into the place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from millstream.relation.sink_address import (
    folder_of,
    scheme_of,
    search_file_of,
    search_server_of,
    ttl_of,
    without_ttl,
)
from millstream.relation.sinks import SinkDefinition
from millstream.secret import resolve
from millstream.sink.contract import ChangeSet, Sink

__all__ = ["ChangeSet", "Sink", "open_sink"]


def open_sink(
    wanted: SinkDefinition, pipeline: str, key: tuple[str, ...], *, log: str, kafka: Mapping[str, str] | None = None
) -> Sink:
    """Open the place of a sink; ``log`` is the pipeline's own, for topics that name no other."""
    producer = f"millstream.{pipeline}.{wanted.name}"
    if not isinstance(wanted.to, str):
        from millstream.sink.function import FunctionSink

        return FunctionSink(wanted.to, producer, key)
    scheme = scheme_of(wanted.to)
    if scheme.startswith("redis"):
        from millstream.sink.redis import RedisSink

        return RedisSink(without_ttl(wanted.to), wanted.view, producer, key, ttl_of(wanted.to))
    if scheme == "opensearch":
        from millstream.sink.opensearch import OpenSearchSink

        return OpenSearchSink(search_server_of(wanted.to), wanted.view, producer, key)
    address = resolve(wanted.to)
    match scheme:
        case "topic":
            from millstream.log import open_log
            from millstream.sink.topic import TopicSink

            topic, _, other = address.partition(":")[2].partition("@")
            return TopicSink(open_log(other or log, kafka=kafka), topic, producer, key)
        case "search":
            from millstream.sink.search import SearchSink

            found = search_file_of(address)
            return SearchSink(Path(found.path), found.columns, found.tokenizer, wanted.view, producer, key)
        case "delta":
            from millstream.sink.delta import DeltaSink

            folder = folder_of(address)
            return DeltaSink(Path(folder.path), wanted.view, producer, key, folder.partition)
    from millstream.sink.files import FileSink

    folder = folder_of(address)
    return FileSink(Path(folder.path), folder.format, folder.partition, key)
