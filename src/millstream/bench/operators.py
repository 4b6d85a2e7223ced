"""Operators measured: each as a whole chain, JSON records in the log to a view, beside plain Structured Streaming where that has
the operator, and beside one Polars job over the same records, which is the limit.

Plain Spark's rules of lateness are others. Where Polars has no such operator it does the nearest thing, and it writes nothing.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import polars as pl

from millstream.bench import Result, plain
from millstream.bench.streams import ROUNDS, Timed, filled, rate, records_of, time_batches
from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.relation.nodes import Emit
from millstream.relation.relation import Relation
from millstream.runtime.run import Progress, run
from millstream.spark.session import spark_session
from millstream.window import hopping, session, sliding, tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = "k long, v double, at timestamp"
_OTHER = "k2 long, w double, at2 timestamp"
_TABLE = "id long, name string"
_WARM = 12
_KEYS = 10_000
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


T = TypeVar("T")


@dataclass(frozen=True)
class Sources(Generic[T]):
    """Two streams and a table, as relations or as frames."""

    a: T
    b: T
    t: T


@dataclass(frozen=True)
class Case:
    """One operator: as a relation, as Polars does it in one go, and as plain Spark does it, where it can."""

    build: Callable[[Sources[Relation]], Relation]
    batch: Callable[[Sources[pl.LazyFrame]], pl.LazyFrame]
    plain: Callable[[Sources[DataFrame]], DataFrame] | None = None
    mode: str = "update"
    key: tuple[str, ...] = ()
    emit: Emit = "changes"
    topics: tuple[str, ...] = ("a",)


def _truncated(column: str, every: str) -> pl.Expr:
    return pl.col(column).dt.truncate(every)


def _present(table: pl.LazyFrame) -> pl.LazyFrame:
    return table.unique("id", keep="last", maintain_order=True)


CASES: dict[str, Case] = {
    "tumbling": Case(
        lambda s: s.a.group_by("k", tumbling("at", "10 seconds")).agg(n="count(*)", s="sum(v)"),
        lambda s: s.a.group_by("k", _truncated("at", "10s")).agg(pl.len(), pl.col("v").sum()),
        lambda s: _windowed(s.a, _window("10 seconds")),
        key=("k", "start"),
    ),
    "hopping": Case(
        lambda s: s.a.group_by("k", hopping("at", "10 seconds", "5 seconds")).agg(n="count(*)", s="sum(v)"),
        lambda s: (
            s.a.sort("at")
            .group_by_dynamic("at", every="5s", period="10s", group_by="k")
            .agg(pl.len(), pl.col("v").sum())
        ),
        lambda s: _windowed(s.a, _window("10 seconds", "5 seconds")),
        key=("k", "start"),
    ),
    "session": Case(
        lambda s: s.a.group_by("k", session("at", "2 seconds")).agg(n="count(*)", s="sum(v)"),
        lambda s: (
            s.a.sort("k", "at")
            .with_columns(new=(pl.col("at").diff().over("k") > timedelta(seconds=2)).fill_null(True).cum_sum())
            .group_by("k", "new")
            .agg(pl.len(), pl.col("v").sum())
        ),
        lambda s: _windowed(s.a, _session("2 seconds")),
        mode="append",
        emit="final",
    ),
    "sliding": Case(
        lambda s: s.a.group_by("k", sliding("at", "5 seconds")).agg(n="count(*)", s="sum(v)"),
        lambda s: (
            s.a.sort("at").rolling("at", period="5s", closed="both", group_by="k").agg(pl.len(), pl.col("v").sum())
        ),
    ),
    "interval_join": Case(
        topics=("a", "b"),
        build=lambda s: s.a.join(s.b, on="k = k2", within=("0 seconds", "1 second")).select("k", "v", "w"),
        batch=lambda s: (
            s.a.join(s.b, left_on="k", right_on="k2")
            .filter((pl.col("at2") - pl.col("at")).is_between(timedelta(0), timedelta(seconds=1)))
            .select("k", "v", "w")
        ),
        plain=lambda s: (
            _marked(s.a)
            .join(_marked(s.b, "at2"), _sql("k = k2 AND at2 >= at AND at2 <= at + INTERVAL 1 SECOND"))
            .select("k", "v", "w")
        ),
        mode="append",
    ),
    "asof_join": Case(
        topics=("a", "t"),
        build=lambda s: s.a.join(s.t, on="k = id", how="left", as_of="at").select("k", "v", "name"),
        batch=lambda s: s.a.join(_present(s.t), left_on="k", right_on="id", how="left").select("k", "v", "name"),
    ),
    "table_join": Case(
        topics=("a", "t"),
        build=lambda s: s.a.group_by("k").agg(n="count(*)").join(s.t, on="k = id").select("k", "n", "name"),
        batch=lambda s: (
            s.a.group_by("k").agg(n=pl.len()).join(_present(s.t), left_on="k", right_on="id").select("k", "n", "name")
        ),
    ),
    "top": Case(
        lambda s: s.a.top(3, by="v DESC", per="k"),
        lambda s: s.a.group_by("k").agg(pl.all().top_k_by("v", 3)).explode("v", "at"),
    ),
    "distinct": Case(
        lambda s: s.a.select("k").distinct(),
        lambda s: s.a.select("k").unique(),
        lambda s: s.a.select("k").dropDuplicates(["k"]),
        mode="append",
    ),
    "deduplicate": Case(
        lambda s: s.a.deduplicate("k", within="1 second"),
        lambda s: s.a.sort("at").group_by("k", _truncated("at", "1s").alias("second")).first(),
        lambda s: _marked(s.a).dropDuplicatesWithinWatermark(["k"]),
        mode="append",
        emit="final",
    ),
}
NAMES = tuple(CASES)


def measure(names: tuple[str, ...], scale: float, say: Callable[[str], None]) -> Iterator[Result]:
    """Measure what is named, one after the other."""
    spark = spark_session("millstream-bench")
    batch = max(500, int(200_000 * scale))
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as name:
        folder = Path(name)
        say(f"{_WARM + ROUNDS} batches of {batch:,} records of each stream into the log")
        log = filled(folder / "log", ["a", "b", "t"], (_appends(batch, number) for number in range(_WARM + ROUNDS)))
        for operator in names:
            say(f"{operator}: {batch:,} records of each stream a batch")
            (folder / operator).mkdir()
            yield from _measure(spark, operator, folder / operator, log, batch)


def _measure(spark: SparkSession, name: str, folder: Path, log: str, batch: int) -> Iterator[Result]:
    case = CASES[name]
    seen: list[Progress] = []
    share = {
        topic: _table_rows(batch) if topic == "t" else batch for topic in case.topics
    }  # an append of each, a batch
    ours = time_batches(spark, lambda: _ours(name, case, folder, log, sum(share.values()), seen), cold=_WARM)
    limit = _polars(case, log)
    if case.plain is not None:
        theirs = plain.apart(_plain, name, folder, log, share)
        yield Result(name, rate(ours), "events/s", "plain Structured Streaming", rate(theirs))
        yield Result(f"{name}.polars", rate(ours), "events/s", "one Polars job", limit)
    else:
        yield Result(name, rate(ours), "events/s", "one Polars job", limit)
    held = seen[-1]
    if held.state_rows:
        yield Result(f"{name}.state", held.state_bytes / held.state_rows, "bytes/row")


def _ours(
    name: str, case: Case, folder: Path, log: str, limit: int, seen: list[Progress]
) -> tuple[str, dict[int, int]]:
    pipeline = Pipeline(name, log=log, to=f"sqlite:{folder / 'views.db'}", checkpoint=str(folder / "ours.checkpoint"))
    a = pipeline.stream("a", _SCHEMA, time="at", delay="1 second")
    b = pipeline.stream("b", _OTHER, time="at2", delay="1 second")
    t = pipeline.table("t", _TABLE, key="id")
    pipeline.view("made", case.build(Sources(a, b, t)), emit=case.emit)
    run(pipeline, spark=spark_session(), once=True, rate_limit=limit, progress=seen.append)
    return name, records_of(seen)


def _plain(name: str, folder: Path, log: str, share: Mapping[str, int]) -> list[Timed]:
    spark, case = plain.session(), CASES[name]
    assert case.plain is not None  # noqa: S101
    schemas = {"a": _SCHEMA, "b": _OTHER, "t": _TABLE}
    frames = [plain.read(spark, log, topic, schema, share.get(topic, 1)) for topic, schema in schemas.items()]
    made = case.plain(Sources(*frames))
    return time_batches(spark, lambda: (plain.write(made, case.mode, folder, case.key), {}), cold=_WARM)


def _polars(case: Case, log: str) -> float:
    """Records a second of one batch job: read, decode, compute; the median of some."""
    taken, count = [], 0
    for _ in range(ROUNDS):
        began = time.monotonic()
        frames: dict[str, pl.DataFrame] = {}
        count = 0
        with open_log(log) as opened:
            for topic, columns in (("a", ("k", "v", "at")), ("b", ("k2", "w", "at2")), ("t", ("id", "name"))):
                values = [
                    record.value
                    for partition in (opened.bounds(topic) if topic in case.topics else ())
                    for record in opened.read(topic, partition, 0, 1 << 62)
                    if record.value is not None
                ]
                count += len(values)
                frames[topic] = _decoded(b"\n".join(values), columns)
        case.batch(Sources(*(frame.lazy() for frame in frames.values()))).collect()
        taken.append(time.monotonic() - began)
    return count / statistics.median(taken)


def _decoded(lines: bytes, columns: tuple[str, ...]) -> pl.DataFrame:
    types: Mapping[str, Any] = {"k": pl.Int64, "k2": pl.Int64, "id": pl.Int64, "v": pl.Float64, "w": pl.Float64}
    frame = pl.read_ndjson(lines, schema={name: types.get(name, pl.String) for name in columns})
    times = [name for name in columns if name.startswith("at")]
    return frame.with_columns(pl.col(times).str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us"))


def _appends(batch: int, number: int) -> dict[str, list[Event]]:
    """One batch: a second of event time for every 5,000 records of a stream, and some rows of the table."""
    chance = np.random.default_rng(number)
    span = max(1.0, batch / 5_000)
    names = chance.integers(0, _KEYS, _table_rows(batch)).tolist() if number else range(_KEYS)
    made = {"t": [Event(b'{"id":%d,"name":"n%d"}' % (key, number), key=b"%d" % key, time=_BEGIN) for key in names]}
    for topic, key, value, at in (("a", "k", "v", "at"), ("b", "k2", "w", "at2")):
        keys, amounts = chance.integers(0, _KEYS, batch).tolist(), chance.random(batch).round(3).tolist()
        seconds = (number * span + np.sort(chance.random(batch)) * span).tolist()
        made[topic] = [
            Event(
                f'{{"{key}":{k},"{value}":{v},"{at}":"{(_BEGIN + timedelta(seconds=s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}"}}'.encode(),
                key=b"%d" % k,
            )
            for k, v, s in zip(keys, amounts, seconds, strict=True)
        ]
    return made


def _table_rows(batch: int) -> int:
    return max(10, batch // 50)


# what plain Spark writes


def _marked(frame: DataFrame, column: str = "at") -> DataFrame:
    return frame.withWatermark(column, "1 second")


def _windowed(frame: DataFrame, window: Any) -> DataFrame:
    from pyspark.sql import functions

    grouped = (
        _marked(frame)
        .groupBy("k", window.alias("w"))
        .agg(functions.count("*").alias("n"), functions.sum("v").alias("s"))
    )
    return grouped.select("k", "w.start", "n", "s")


def _window(size: str, every: str | None = None) -> Any:
    from pyspark.sql import functions

    return functions.window("at", size, every) if every else functions.window("at", size)


def _session(gap: str) -> Any:
    from pyspark.sql import functions

    return functions.session_window("at", gap)


def _sql(text: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(text)
