"""A chain as a Spark query: records of all topics become chunks for the views, in one linear plan.

Decoding and every scalar expression run natively, before the records are packed. Topics have different columns, so the
expressions of each feed are computed one feed after the other over one frame; the user's text reaches Spark as it is. An
expression sees only records that its feed can use: a malformed one never reaches it, nor one that a filter before it removes.
A record on which one fails cannot be used either, unless its source says that it stops the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from millstream.kernel.admission.record import (
    FAILED,
    IGNORED,
    column_of,
    is_used,
    lacks,
    placed_by,
)
from millstream.kernel.host import Host
from millstream.kernel.state.store import FOREVER
from millstream.log.heartbeat import Beat, heartbeat_sql
from millstream.plan.build import Chain, Feed, micros
from millstream.plan.prune_columns import narrowed
from millstream.relation import expression
from millstream.relation.clauses import HEADERS
from millstream.relation.nodes import META_COLUMNS, EventTime, Source
from millstream.spark import stages, udf
from millstream.spark.decoding import column, decoded, deleted, headers_sql, hidden, opened, unusable
from millstream.spark.fast_path import CHUNK
from millstream.spark.framed_avro import literal
from millstream.spark.framed_envelopes import in_json
from millstream.spark.internals.arrow_schema import arrow_schema
from millstream.spark.internals.python_functions import check_calls, finder
from millstream.spark.internals.try_eval import tried

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RAW = ("_value", "_topic", *META_COLUMNS)
_JUDGED = {
    "_feed": "int",
    "_bad": "string",
    "_beat": "bigint",
    "_t": "bigint",
    "_wild": "boolean",
    "_who": "string",
    "_nth": "bigint",
    "_deleted": "boolean",
}


def decode(records: DataFrame, chain: Chain, pipeline: str) -> DataFrame:
    """Decode each record (:data:`~millstream.spark.records.COLUMNS`) by its topic and compute the expressions of its feed.

    Records may have taken the shortcut (:mod:`millstream.spark.fast_path`): what is a chunk already stays one.
    """
    check_calls(records.sparkSession, [text for feed in chain.feeds for text in _written(feed)])
    chunk = [name for name in CHUNK if name in records.columns]
    frame = in_json(records, [feed.source for feed in chain.feeds]).selectExpr(
        *chunk,
        "value AS _value",
        "topic AS _topic",
        "make_valid_utf8(cast(key AS string)) AS _key",
        "partition AS _partition",
        "offset AS _offset",
        "append_time AS _append_time",
        "timestamp AS _timestamp",
        f"{headers_sql() if 'headers' in records.columns else 'cast(null AS map<string, string>)'} AS {HEADERS}",
        f"CASE {' '.join(f'WHEN topic = {literal(feed.source.topic)} THEN {feed.number}' for feed in chain.feeds)} END AS _feed",
        "cast(null AS string) AS _bad",
        f"{heartbeat_sql(pipeline, ended=FOREVER, ignored=IGNORED)} AS _beat",
        *(f"cast(null AS {kind}) AS {name}" for name, kind in list(_JUDGED.items())[3:]),
    )
    made: list[str] = list(chunk)
    spark = frame.sparkSession
    guarded = partial(udf.guarded, spark, finder(spark), functions=chain.functions)
    for feed in chain.feeds:
        frame = _decode_feed(frame, feed, made, chain, guarded)
        made += [column_of(feed, each.name) for each in feed.expressions]
    return frame.selectExpr(
        "_feed",
        "_partition",
        "_offset AS _o",
        "unix_micros(_append_time) AS _a",
        *(name for name in _JUDGED if name != "_feed" and any(is_used(feed, name) for feed in chain.feeds)),
        *made,
    )


def _written(feed: Feed) -> Iterator[str]:
    """Every expression of a feed that the user wrote."""
    for each in feed.expressions:
        yield from (each.expression, each.guard)
    if feed.source.time is not None:
        yield feed.source.time.said or ""
    if feed.source.sequence is not None:
        yield from (feed.source.sequence.producer, feed.source.sequence.number)


def staged(decoded: DataFrame, host: Host, beats: Sequence[Beat] = ()) -> DataFrame:
    """Pack what is decoded, and run all stages over it: the chunks that reach the driver.

    Of a batch, ``beats`` are the heartbeats in it; those of a stream come from its source.
    """
    frame = stages.pack(decoded, host)
    if beats:
        frame = frame.union(stages.to_frame(decoded.sparkSession, host.admission.tell(beats)))
    for number in host.chain.stages:
        frame = stages.stage(frame, host, number)
    return frame


def feed_types(decoded: DataFrame, chain: Chain) -> dict[int, pl.Schema]:
    """The types of each feed's expressions, as Spark gives them."""
    types = pl.DataFrame(pl.from_arrow(arrow_schema(decoded.sparkSession, decoded.schema).empty_table())).schema
    return {
        feed.number: pl.Schema({each.name: types[column_of(feed, each.name)] for each in feed.expressions})
        for feed in chain.feeds
    }


def _decode_feed(frame: DataFrame, feed: Feed, made: list[str], chain: Chain, guarded: Callable[..., str]) -> DataFrame:
    source, spark = narrowed(feed), frame.sparkSession
    kept = [*_RAW, *_JUDGED, *made]
    mine = f"_feed = {feed.number} AND _beat IS NULL"
    frame = frame.selectExpr(*kept, f"CASE WHEN {mine} THEN {decoded(source)} END AS _d")
    # Flat columns under their own names; the next step needs them by name.
    frame = frame.selectExpr(*kept, f"{opened(source)} AS _d")
    flat = [f"{column(source, name.name)} AS `{name.name}`" for name in source.columns]
    flat += [f"{text} AS {name}" for name, text in hidden(source).items()]
    if source.kind == "table":
        flat.append(f"CASE WHEN {mine} THEN {deleted(source)} ELSE _deleted END AS _deleted")
        kept.remove("_deleted")
    frame = frame.selectExpr(*kept, f"CASE WHEN {mine} THEN {unusable(source)} END AS _why", *flat)
    kept = [*_RAW, *_JUDGED, *made]
    usable = f"{mine} AND _why IS NULL"
    names = [*kept, "_why", *(f"`{name.name}`" for name in source.columns), *hidden(source)]
    if (
        source.time is not None and source.time.said
    ):  # a record whose time cannot be told is malformed, and stops nothing
        told = guarded(_told(source.time), usable)
        when = tried(spark, f"CASE WHEN {usable} THEN {told} END")
        frame, names = frame.select(*names, when.alias("_when")), [*names, "_when"]
        usable += " AND _when.value IS NOT NULL"
    values = {
        column_of(feed, each.name): f"CASE WHEN {usable} THEN {guarded(each.expression, usable, each.guard)} END"
        for each in feed.expressions
    }
    if source.sequence is not None:
        who, nth = (guarded(text, usable) for text in (source.sequence.producer, source.sequence.number))
        values["_who"] = f"CASE WHEN {usable} THEN cast(({who}) AS string) END"
        values["_nth"] = f"CASE WHEN {usable} THEN cast(({nth}) AS bigint) END"
    fails = _texts(feed, chain) if source.failed == "dead_letter" else {}
    if fails:
        tries = {name: f"_try{index}" for index, name in enumerate(fails)}
        frame = frame.select(*names, *(tried(spark, values[name]).alias(tries[name]) for name in fails))
        values |= {name: f"{attempt}.value" for name, attempt in tries.items()}
        fails = {tries[name]: text for name, text in fails.items()}
    judged = {
        "_bad": f"CASE WHEN {mine} THEN {_first(_complete(source), _failed(fails, source))} ELSE _bad END",
    }
    if source.time is not None:
        judged["_t"] = f"CASE WHEN {usable} THEN unix_micros({_time(source.time)}) ELSE _t END"
        if source.time.sent is not None:
            received = f"`{source.time.received}`" if source.time.received else "_append_time"
            off = f"abs(unix_micros({received}) - unix_micros(`{source.time.sent}`)) > {micros(source.time.wild)}"
            judged["_wild"] = f"CASE WHEN {usable} THEN {off} ELSE _wild END"
    if source.sequence is not None:
        judged |= {name: f"coalesce({values.pop(name)}, {name})" for name in ("_who", "_nth")}
    return frame.selectExpr(
        *_RAW,
        *(f"{judged.get(name, name)} AS {name}" for name in _JUDGED),
        *made,
        *(f"{value} AS {name}" for name, value in values.items()),
    )


def _texts(feed: Feed, chain: Chain) -> dict[str, str]:
    """What may fail on a record of a feed: its column, and what is said of it."""
    found = {}
    for each in feed.expressions:
        if not each.total:
            views = ", ".join(dict.fromkeys(chain.readers(feed.ports, each.name)))
            found[column_of(feed, each.name)] = f"view {views}: {each.written}"
    if (sequence := feed.source.sequence) is not None:
        found |= {"_who": f"sequence: {sequence.producer}", "_nth": f"sequence: {sequence.number}"}
    return found


def _failed(fails: Mapping[str, str], source: Source) -> str:
    """What failed on a record, or nothing; fields of a row that is gone are null and mean nothing, so that nothing fails there."""
    gone = "_deleted" if source.kind == "table" else "_value IS NULL"
    cases = " ".join(f"WHEN {attempt} IS NULL THEN {literal(FAILED + text)}" for attempt, text in fails.items())
    return f"CASE WHEN {gone} THEN null {cases} END" if cases else ""


def _first(*texts: str) -> str:
    """The first that is not null."""
    return f"coalesce({', '.join(text for text in texts if text)})"


def _time(time: EventTime) -> str:
    """A stream's time; null where an expression cannot tell it."""
    return "_when.value" if time.said else f"`{time.column}`"


def _told(time: EventTime) -> str:
    """The expression that tells a stream's time; null where a number is beyond all times."""
    match expression.call_of(time.said, "time"):
        case "timestamp_millis", (number,):
            return f"timestamp_micros(try_multiply(try_cast(({number}) AS bigint), 1000L))"
        case "timestamp_seconds", (number,):
            return f"timestamp_micros(try_cast(try_cast(({number}) AS decimal(20, 6)) * 1000000 AS bigint))"
        case _:
            return f"({time.said})"


def _complete(source: Source) -> str:
    """Why a record cannot be used: it does not decode, or lacks what it is placed by."""
    needed = {name: f"`{name}`" if source.time is None else _time(source.time) for name in placed_by(source)}
    lacking = " ".join(f"WHEN {value} IS NULL THEN {literal(lacks(name))}" for name, value in needed.items())
    return _first("_why", f"CASE {lacking} END" if lacking else "")
