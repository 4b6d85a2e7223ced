"""Millstream: streams, tables and time on Spark.

What is here can be relied on; everything else may move. Names that need Spark, Arrow or a SQL parser are loaded when first
used, so that the log can be used without them.
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
    from millstream.load import load_pipeline
    from millstream.log.archive import Archive
    from millstream.outlet.call import Change, Refuse
    from millstream.outlet.files import committed_files
    from millstream.pipeline import Pipeline
    from millstream.plan.relation import Relation
    from millstream.plan.source import Clock
    from millstream.plan.window import hopping, rows, session, sliding, span, tumbling
    from millstream.runtime.batch import Batched, run_batch
    from millstream.runtime.rebuild import rebuild, roll_back
    from millstream.runtime.run import Progress, run
    from millstream.runtime.travel import as_of
    from millstream.runtime.verify import Verified, verify
    from millstream.spark.read import read_batch, read_stream
    from millstream.spark.session import spark_session
    from millstream.view import View

__all__ = [
    "Archive",
    "Avro",
    "Batched",
    "Buffer",
    "Change",
    "Clock",
    "Event",
    "Json",
    "Log",
    "MillstreamError",
    "Pipeline",
    "Producer",
    "Progress",
    "QueueSettings",
    "Record",
    "Refuse",
    "Relation",
    "Text",
    "TopicPartition",
    "TopicSettings",
    "Verified",
    "View",
    "__version__",
    "as_of",
    "committed_files",
    "hopping",
    "lag",
    "load_pipeline",
    "open_log",
    "read_batch",
    "read_stream",
    "rebuild",
    "roll_back",
    "rows",
    "run",
    "run_batch",
    "session",
    "sliding",
    "span",
    "spark_session",
    "tumbling",
    "verify",
]

_LATER = {
    "Archive": "millstream.log.archive",
    "Batched": "millstream.runtime.batch",
    "Change": "millstream.outlet.call",
    "Clock": "millstream.plan.source",
    "Pipeline": "millstream.pipeline",
    "Progress": "millstream.runtime.run",
    "Refuse": "millstream.outlet.call",
    "Relation": "millstream.plan.relation",
    "Verified": "millstream.runtime.verify",
    "View": "millstream.view",
    "as_of": "millstream.runtime.travel",
    "committed_files": "millstream.outlet.files",
    "hopping": "millstream.plan.window",
    "load_pipeline": "millstream.load",
    "read_batch": "millstream.spark.read",
    "read_stream": "millstream.spark.read",
    "rebuild": "millstream.runtime.rebuild",
    "roll_back": "millstream.runtime.rebuild",
    "rows": "millstream.plan.window",
    "run": "millstream.runtime.run",
    "run_batch": "millstream.runtime.batch",
    "session": "millstream.plan.window",
    "sliding": "millstream.plan.window",
    "span": "millstream.plan.window",
    "spark_session": "millstream.spark.session",
    "tumbling": "millstream.plan.window",
    "verify": "millstream.runtime.verify",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'millstream' has no attribute {name!r}")
