"""Millstream: streams, tables and time on Spark.

What is here can be relied on; everything else may move. Names that need Spark or Arrow are loaded when first used, so that
the log can be used without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millstream.codec import Avro, Json, Text
from millstream.errors import MillstreamError
from millstream.event import Event, Record, TopicPartition
from millstream.log import Log, open_log
from millstream.log.contract import QueueSettings, TopicSettings
from millstream.log.lag import lag
from millstream.log.producer import Buffer, Producer
from millstream.version import __version__

if TYPE_CHECKING:
    from millstream.log.archive import Archive
    from millstream.spark.read import read_batch, read_stream
    from millstream.spark.session import spark_session

__all__ = [
    "Archive",
    "Avro",
    "Buffer",
    "Event",
    "Json",
    "Log",
    "MillstreamError",
    "Producer",
    "QueueSettings",
    "Record",
    "Text",
    "TopicPartition",
    "TopicSettings",
    "__version__",
    "lag",
    "open_log",
    "read_batch",
    "read_stream",
    "spark_session",
]

_LATER = {
    "Archive": "millstream.log.archive",
    "read_batch": "millstream.spark.read",
    "read_stream": "millstream.spark.read",
    "spark_session": "millstream.spark.session",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'millstream' has no attribute {name!r}")
