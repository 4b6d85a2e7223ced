"""Buckets go by labels that Spark deals out evenly."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from millstream.kernel.exchange.bucket_labels import labels, task_of


@pytest.mark.parametrize("tasks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("buckets", [1, 8, 16])
def test_every_task_gets_its_share_of_every_kernel(buckets: int, tasks: int) -> None:
    for target in range(20):
        named = labels(target, buckets, tasks)
        assert len(set(named)) == buckets
        dealt = Counter(task_of(target, label, tasks) for label in named)
        assert max(dealt.values()) == -(-buckets // tasks)


def test_labels_never_change() -> None:
    assert labels(1, 8, 2) == GOLDEN


GOLDEN = (0, 1, 5, 2, 8, 3, 10, 4)


def test_spark_deals_groups_out_as_we_think(spark: SparkSession) -> None:
    pairs = [(target, label) for target in range(12) for label in range(25)]
    frame = spark.createDataFrame(pairs, "target int, label int")
    for tasks in (2, 3, 5):
        rows = frame.selectExpr("target", "label", f"pmod(hash(target, label), {tasks}) AS task").collect()
        assert all(row.task == task_of(row.target, row.label, tasks) for row in rows)
