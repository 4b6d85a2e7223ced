"""The process that Spark's Python workers are forked from, with everything a stage needs already loaded.

Spark's own daemon loads nothing, so that every worker imports Arrow, pandas and Polars for itself: about a second each. Nothing
is opened here, only imported: what is open would not survive a fork. The imported objects are frozen out of the garbage
collector, which Spark runs after every task; within one it need not come every 700 objects: records are many, and no cycles.
"""

from __future__ import annotations

import gc
import socket

import pandas  # noqa: F401  (Arrow looks for it as soon as it makes an array)
import pyarrow.compute  # noqa: F401
import pyspark.daemon
import pyspark.worker
from pyspark.sql.streaming import stateful_processor_util  # noqa: F401
from pyspark.sql.streaming.proto import StateMessage_pb2  # noqa: F401

from millstream.decode import decoder  # noqa: F401
from millstream.kernel import host  # noqa: F401
from millstream.spark import (
    source,  # noqa: F401
    stages,  # noqa: F401
)

_worker = pyspark.daemon.worker


def _end_quietly(sock: socket.socket, authenticated: bool) -> int:
    """A worker whose query was stopped finds nobody to write to: that is no news, and Spark would print the stack."""
    try:
        return _worker(sock, authenticated)
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    pyspark.daemon.worker = _end_quietly
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
    pyspark.daemon.manager()
