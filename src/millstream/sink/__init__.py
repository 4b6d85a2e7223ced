"""Where the changes of a view go besides its store: :func:`open_outlet` turns a sink's definition into the place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from millstream.relation.sinks import Outgoing, folder_of, scheme_of
from millstream.secret import resolve
from millstream.sink.contract import Outlet, Parcel

__all__ = ["Outlet", "Parcel", "open_outlet"]


def open_outlet(
    wanted: Outgoing, pipeline: str, key: tuple[str, ...], *, log: str, kafka: Mapping[str, str] | None = None
) -> Outlet:
    """Open the place of a sink; ``log`` is the pipeline's own, for topics that name no other."""
    producer = f"millstream.{pipeline}.{wanted.name}"
    if not isinstance(wanted.to, str):
        from millstream.sink.function import CallOutlet

        return CallOutlet(wanted.to, producer, key)
    scheme = scheme_of(wanted.to)
    if scheme.startswith("redis"):
        from millstream.sink.redis import RedisOutlet

        return RedisOutlet(wanted.to, wanted.view, producer, key)
    address = resolve(wanted.to)
    if scheme == "topic":
        from millstream.log import open_log
        from millstream.sink.topic import TopicOutlet

        topic, _, other = address.partition(":")[2].partition("@")
        return TopicOutlet(open_log(other or log, kafka=kafka), topic, producer, key)
    from millstream.sink.files import FileOutlet

    folder = folder_of(address)
    return FileOutlet(Path(folder.path), folder.format, folder.partition)
