"""What every way to run a pipeline begins with: its chain, a session, the tables of its views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millstream.address import parse_log
from millstream.kernel.host import Host
from millstream.kernel.schemas import raw_schemas
from millstream.pipeline import Pipeline
from millstream.plan.build import Chain, ViewPlan, build_chain
from millstream.runtime.analysis_errors import analysed
from millstream.runtime.delivery import target_of
from millstream.spark import fast_path
from millstream.spark.distribute_code import ship
from millstream.spark.lowering import decode, feed_types
from millstream.spark.session import require, spark_session
from millstream.spark.settings import is_one_process, usable
from millstream.store import Target
from millstream.typecheck.inference import check_types

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import SparkSession

RECORDS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, append_time timestamp"
)
"""The columns of records, as DDL."""


def chain_of(pipeline: Pipeline, tasks: int = 1, *, early: bool = False) -> Chain:
    """The chain of a pipeline; ``tasks`` of a stage share its buckets; ``early`` is :attr:`~millstream.plan.chain.Chain.early`."""
    pipeline.validate()
    views = [
        ViewPlan(view.name, view.node, view.to, view.emit, view.key, view.refused, view.kept)
        for view in pipeline.views.values()
    ]
    chain = build_chain(views, buckets=pipeline.buckets, to=pipeline.to, tasks=tasks, functions=pipeline.udf.all)
    return replace(chain, early=early)


def as_it_runs(pipeline: Pipeline, chain: Chain, *, sends: bool = True) -> Chain:
    """The chain of a pipeline where what nobody gets goes no further: views kept nowhere, unless a sink gets their changes."""
    sent = {sink.view for sink in pipeline.sinks.values()} if sends else set()
    return chain.unread([each.name for each in chain.outputs if not each.kept and each.name not in sent])


def session_for(pipeline: Pipeline, chain: Chain, given: SparkSession | None) -> SparkSession:
    """The session that is given, or ours; either has what the pipeline needs beyond Spark's wheel, or it is an error."""
    kafka, avro = not parse_log(pipeline.log).embedded, any(feed.source.avro_schema for feed in chain.feeds)
    if given is None:
        return spark_session(f"millstream-{pipeline.name}", settings=pipeline.spark, kafka=kafka, avro=avro)
    require(given, kafka=kafka, avro=avro)
    if not is_one_process(given.sparkContext.master):
        ship(given)
    return given


def targets_of(
    spark: SparkSession | None, pipeline: Pipeline, chain: Chain, types: Mapping[int, pl.Schema]
) -> dict[str, Target]:
    """The tables of all views, with the types that Spark gives to their expressions; ``types`` are those of the feeds.

    What these types do not allow is refused, at its place.
    """
    check_types([view.node for view in pipeline.views.values()], chain, types)
    raw = raw_schemas(chain, types)
    with analysed(spark, pipeline.views.values()):
        return {output.name: target_of(spark, output, raw[output.name]) for output in chain.outputs}


def empty_records(spark: SparkSession) -> Any:
    """No records, with their columns."""
    return spark.createDataFrame([], RECORDS)


def check_expressions(spark: SparkSession, pipeline: Pipeline, chain: Chain) -> None:
    """Let Spark look at expressions, over no records: what it does not know is refused before anything is made or removed.

    Those that the decoder computes itself are known, with their types.
    """
    decoder = fast_path.decoder_for(spark, Host(chain, {}))
    known = decoder.types if decoder is not None else {}
    rest = replace(chain, feeds=tuple(feed for feed in chain.feeds if feed.number not in known))
    with our_settings(spark, spark.sparkContext.defaultParallelism):
        if rest.feeds:
            with analysed(spark, pipeline.views.values()):
                known = {**known, **feed_types(decode(empty_records(spark), rest, pipeline.name), rest)}
        targets_of(spark, pipeline, chain, known)


@contextmanager
def our_settings(spark: SparkSession, tasks: int) -> Iterator[None]:
    """Our settings for the start of a query, which takes them with it; the session gets its own back."""
    wanted = {name: value for name, value in usable().items() if name.startswith("spark.sql.")}
    wanted["spark.sql.shuffle.partitions"] = str(tasks)
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
