"""Classes of Spark that we name: looked up in its jars, without a JVM, or in a running JVM."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

from millstream.spark.internals.registry import Internal, expect
from millstream.spark.internals.spark_home import spark_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT_SETTING = "spark.sql.streaming.checkpointFileManagerClass"
CHECKPOINT_CLASS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def _test_checkpoint_files() -> None:
    found = next(iter((spark_folder() / "jars").glob("spark-sql_*.jar")), None)
    expect(found, "there is no spark-sql among its jars")
    with zipfile.ZipFile(found) as file:  # type: ignore[arg-type]  # it is there
        expect(f"{CHECKPOINT_CLASS.replace('.', '/')}.class" in file.NameToInfo, f"it has no class {CHECKPOINT_CLASS}")


def _test_class_check(spark: SparkSession) -> None:
    loadable = spark._jvm.org.apache.spark.util.Utils.classIsLoadable  # type: ignore[union-attr]
    expect(loadable("java.lang.String") is True, "a class that is there is not found")
    expect(loadable("no.such.Class") is False, "a class that is not there is found")


CHECKPOINT_FILES = Internal(
    "checkpoint_files",
    "Spark chooses how to write the files of a checkpoint",
    _test_checkpoint_files,
)
CLASS_CHECK = Internal(
    "class_check", "Spark itself says what it lacks, when a query is made", test_in=_test_class_check
)


def lacks_class(spark: SparkSession, name: str) -> bool:
    """Whether the session surely lacks a class. A Spark Connect client cannot look, and its server is not ours."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None or not CLASS_CHECK.works(spark):
        return False
    return not jvm.org.apache.spark.util.Utils.classIsLoadable(name)
