"""The process that Spark's Python workers are forked from, with everything a stage needs already loaded.

Spark's own daemon loads nothing, so that every worker imports Arrow, pandas and Polars for itself: about a second each. This one
only imports, and opens nothing: what is open would not survive a fork. The imported objects are frozen out of the garbage
collector, which Spark runs after every task. Within a task the collector runs less often than every 700 objects: there are many
records, and they have no cycles.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401  (Arrow looks for it as soon as it makes an array)
import pyarrow.compute  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.sql.streaming import stateful_processor_util  # noqa: F401
from pyspark.sql.streaming.proto import StateMessage_pb2  # noqa: F401

from millstream.decode import decoder  # noqa: F401
from millstream.kernel import host  # noqa: F401
from millstream.spark import source, stages  # noqa: F401
from millstream.spark.internals import quiet_daemon

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
    quiet_daemon.manager()
