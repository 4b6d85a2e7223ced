"""All things of Spark's inside that are used, for those who ask about them."""

from __future__ import annotations

from millstream.spark.internals.arrow_schema import ARROW_SCHEMA
from millstream.spark.internals.classes import CHECKPOINT_FILES, CLASS_CHECK
from millstream.spark.internals.driver_process import ACTIVE_CONTEXT, COMMAND_LINE, JVM_PROCESS, QUIET_DRIVER, SIGNALS
from millstream.spark.internals.kafka_messages import KAFKA_MESSAGES
from millstream.spark.internals.preload import FORK
from millstream.spark.internals.python_functions import PYTHON_FUNCTIONS
from millstream.spark.internals.quiet_daemon import DAEMON, QUIET_DAEMON
from millstream.spark.internals.registry import Internal
from millstream.spark.internals.spark_home import CLASS_ARCHIVE, LINKS
from millstream.spark.internals.state_calls import PIPELINED_STATE
from millstream.spark.internals.try_eval import TRY_EVAL

EVERY: tuple[Internal, ...] = (
    FORK,
    DAEMON,
    QUIET_DAEMON,
    QUIET_DRIVER,
    LINKS,
    CLASS_ARCHIVE,
    CHECKPOINT_FILES,
    COMMAND_LINE,
    SIGNALS,
    JVM_PROCESS,
    ACTIVE_CONTEXT,
    CLASS_CHECK,
    PIPELINED_STATE,
    ARROW_SCHEMA,
    TRY_EVAL,
    PYTHON_FUNCTIONS,
    KAFKA_MESSAGES,
)
"""In the order of :data:`~millstream.spark.internals.registry.NAMES`."""
