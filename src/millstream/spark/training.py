"""The class-data archive made: a process that runs what pipelines run, once, and lets the JVM write down the classes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import SparkError
from millstream.spark import java
from millstream.spark.session import end_own_jvm, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def train() -> None:
    """Make the class-data archive for later starts: run what pipelines run, once, and let the JVM write it down."""
    os.setsid()  # a Ctrl-C in the terminal that started us is not meant for us
    os.nice(19)
    with java.new_archive(java.find_java()) as wanted:
        if not wanted:
            return
        try:
            with tempfile.TemporaryDirectory() as folder:
                session = spark_session()
                _exercise(session, Path(folder))
                session.stop()
        finally:
            code = end_own_jvm()
        if code != 0:
            raise SparkError(f"the JVM ended with {code}, so what it wrote may not be complete")


def _exercise(session: SparkSession, folder: Path) -> None:
    """Run a small query through every part of Spark that a pipeline uses."""
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": 0}

        def latestOffset(self, *_: object) -> dict[str, int]:  # noqa: N802
            return {"at": 1}

        def partitions(self, *_: object) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, *_: object) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"id": [1, 2, 3], "text": ["a", "b", "c"]})

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "millstream_training"

        def schema(self) -> str:
            return "id long, text string"

        def streamReader(self, schema: object) -> Reader:  # noqa: N802, ARG002
            return Reader()

    class Last(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.last = handle.getMapState("last", "id long", "bytes binary")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803, ARG002
            for frame in rows:
                self.last.updateValue((key[0],), (b"seen",))
                yield frame

        def close(self) -> None:
            pass

    session.dataSource.register(Numbers)
    session.range(100).selectExpr("id % 7 AS k", "id").groupBy("k").count().collect()
    (
        session.readStream.format("millstream_training")
        .load()
        .selectExpr("id", "from_json('{\"a\": 1}', 'a long').a AS a")
        .mapInArrow(lambda batches: batches, "id long, a long")
        .groupBy("id")
        .transformWithStateInPandas(Last(), "id long, a long", "append", "none")
        .writeStream.foreachBatch(lambda frame, _: frame.write.format("noop").mode("append").save())
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
