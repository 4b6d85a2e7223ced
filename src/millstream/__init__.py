"""Millstream: streams, tables and time on Spark.

What is here can be relied on; everything else may move. Names are loaded when first used: the log can be used without Spark,
Arrow or a SQL parser, and the processes that Spark starts do not wait for what they do not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from millstream.version import __version__

if TYPE_CHECKING:
    from millstream import frame as frame
    from millstream import window as window
    from millstream.codec import Avro, Json, Text
    from millstream.debezium import Debezium
    from millstream.errors import MillstreamError
    from millstream.event import Event, Record, TopicPartition
    from millstream.event_pattern import pattern
    from millstream.framed import Confluent
    from millstream.load import load_pipeline
    from millstream.log import Log, open_log
    from millstream.log.archive import Archive
    from millstream.log.contract import QueueSettings, TopicSettings
    from millstream.log.lag import group_lag
    from millstream.log.producer import Buffer, Producer
    from millstream.pipeline import Pipeline
    from millstream.registry import Registry
    from millstream.relation.relation import Relation
    from millstream.relation.source import Clock
    from millstream.runtime.batch import BatchResult, run_batch
    from millstream.runtime.rebuild import rebuild, roll_back
    from millstream.runtime.run import Progress, run
    from millstream.runtime.time_travel import as_of
    from millstream.runtime.verify import Verification, verify
    from millstream.sink.files import committed_files
    from millstream.sink.function import Change, RejectChange
    from millstream.spark.read import read_batch, read_stream
    from millstream.spark.session import spark_session
    from millstream.vault.vault import Vault
    from millstream.view import View

__all__ = [
    "Archive",
    "Avro",
    "BatchResult",
    "Buffer",
    "Change",
    "Clock",
    "Confluent",
    "Debezium",
    "Event",
    "Json",
    "Log",
    "MillstreamError",
    "Pipeline",
    "Producer",
    "Progress",
    "QueueSettings",
    "Record",
    "Registry",
    "RejectChange",
    "Relation",
    "Text",
    "TopicPartition",
    "TopicSettings",
    "Vault",
    "Verification",
    "View",
    "__version__",
    "as_of",
    "committed_files",
    "compact_files",
    "group_lag",
    "load_pipeline",
    "open_log",
    "pattern",
    "read_batch",
    "read_stream",
    "rebuild",
    "roll_back",
    "run",
    "run_batch",
    "search",
    "spark_session",
    "verify",
]

_NAMESPACES = ("frame", "window")
"""Public too, and not for ``import *``, which would put them over ``pyspark.sql.functions.window`` and many a variable."""

_LATER = {
    "Archive": "millstream.log.archive",
    "Avro": "millstream.codec",
    "BatchResult": "millstream.runtime.batch",
    "Buffer": "millstream.log.producer",
    "Change": "millstream.sink.function",
    "Clock": "millstream.relation.source",
    "Confluent": "millstream.framed",
    "Debezium": "millstream.debezium",
    "Event": "millstream.event",
    "Json": "millstream.codec",
    "Log": "millstream.log",
    "MillstreamError": "millstream.errors",
    "Pipeline": "millstream.pipeline",
    "Producer": "millstream.log.producer",
    "Progress": "millstream.runtime.run",
    "QueueSettings": "millstream.log.contract",
    "Record": "millstream.event",
    "Registry": "millstream.registry",
    "RejectChange": "millstream.sink.function",
    "Relation": "millstream.relation.relation",
    "Text": "millstream.codec",
    "TopicPartition": "millstream.event",
    "TopicSettings": "millstream.log.contract",
    "Vault": "millstream.vault.vault",
    "Verification": "millstream.runtime.verify",
    "View": "millstream.view",
    "as_of": "millstream.runtime.time_travel",
    "committed_files": "millstream.sink.files",
    "compact_files": "millstream.sink.compact",
    "group_lag": "millstream.log.lag",
    "load_pipeline": "millstream.load",
    "open_log": "millstream.log",
    "pattern": "millstream.event_pattern",
    "read_batch": "millstream.spark.read",
    "read_stream": "millstream.spark.read",
    "rebuild": "millstream.runtime.rebuild",
    "roll_back": "millstream.runtime.rebuild",
    "run": "millstream.runtime.run",
    "run_batch": "millstream.runtime.batch",
    "search": "millstream.sink.search_file",
    "spark_session": "millstream.spark.session",
    "verify": "millstream.runtime.verify",
}


def __dir__() -> list[str]:
    """What completion shows: the public names, loaded or not."""
    return sorted((*__all__, *_NAMESPACES))


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return import_module(f"millstream.{name}")
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'millstream' has no attribute {name!r}")
