"""A small pipeline that uses all that our engine takes of Spark's inside, run twice; what it gave and how it ran, as JSON.

``python -m tests.spark.internals.small_shop FOLDER``: a session of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from millstream import Pipeline, run, verify
from millstream.errors import SparkError
from millstream.event import Event
from millstream.log import open_log
from millstream.spark.session import spark_session, stop_session
from millstream.store import open_reader
from millstream.window import tumbling

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def views(folder: Path, spark: SparkSession) -> dict[str, list[list[str]]]:
    """The rows of all views, as text, after two runs; the second one goes on with the state of the first."""
    shop = Pipeline(
        "small",
        log=f"sqlite:{folder / 'log.db'}",
        to=f"sqlite:{folder / 'v.db'}",
        checkpoint=str(folder / "c"),
        buckets=2,
    )
    orders = shop.stream("orders", "id int, city string, cents int, at timestamp", time="at")
    shop.view("cities", orders.group_by("city").agg(n="count(*)", sum="sum(cents)"))
    shop.view("minutes", orders.group_by("city", tumbling("at", "1 minute")).agg(n="count(*)"))
    shop.view("each", orders.select("id", "100 div (cents - 7) AS share"))  # 7 cents fail
    with open_log(shop.log, create=True) as log:
        log.create_topic("orders", 2)
        for part in range(2):
            log.append("orders", [_order(part * 300 + nth) for nth in range(300)])
            run(shop, spark=spark, once=True)
    assert verify(shop, spark=spark).equal
    found = {name: sorted([*map(str, row)] for row in view.to_polars().rows()) for name, view in shop.views.items()}
    with open_reader(shop.to) as store:
        letters = store.dead_letters(shop.name).select(["partition", "offset", "reason"]).to_pylist()
    return found | {"dead letters": sorted([*map(str, each.values())] for each in letters)}


def _order(nth: int) -> Event:
    value = {
        "id": nth,
        "city": f"city {nth % 50}",
        "cents": nth % 100,
        "at": (BEGIN + timedelta(seconds=nth)).isoformat(),
    }
    return Event(json.dumps(value).encode(), str(nth).encode())


def refusal(folder: Path, spark: SparkSession) -> str:
    """What is said of a pipeline that calls a function of the session."""
    spark.udf.register("tenth", lambda n: n // 10, "int")
    shop = Pipeline(
        "refused", log=f"sqlite:{folder / 'log.db'}", to=f"sqlite:{folder / 'r.db'}", checkpoint=str(folder / "r")
    )
    shop.view("each", shop.stream("orders", "id int", failed="stop").select("tenth(id) AS q"))
    try:
        run(shop, spark=spark, once=True)
    except SparkError as error:
        return error.message
    return ""


def how(spark: SparkSession) -> dict[str, Any]:
    """How the session runs: what its workers descend from, what its JVM takes for Spark's folder."""

    def parents(_: object) -> Iterator[str]:
        at = os.getpid()
        while at > 1:
            yield Path(f"/proc/{at}/cmdline").read_text().replace("\0", " ")
            at = int(Path(f"/proc/{at}/stat").read_text().rpartition(")")[2].split()[1])

    return {
        "parents": " ".join(spark.sparkContext.parallelize([1], 1).flatMap(parents).collect()),
        "home": str(spark._jvm.System.getenv("SPARK_HOME")),  # type: ignore[union-attr]
        "archive": str(spark._jvm.System.getenv("MILLSTREAM_CLASS_ARCHIVE")),  # type: ignore[union-attr]
        "files": spark.conf.get("spark.sql.streaming.checkpointFileManagerClass", ""),
    }


if __name__ == "__main__":
    own = spark_session()
    place = Path(sys.argv[1])
    sys.stdout.write(json.dumps({"views": views(place, own), "how": how(own), "refusal": refusal(place, own)}) + "\n")
    stop_session()
