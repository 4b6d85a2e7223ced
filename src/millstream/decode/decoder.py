"""JSON records decoded and packed where they are read, without a row in the JVM, where that is certain to give what Spark gives.

Spark's ``from_json`` and Spark SQL define what a record means; this is a shortcut for most of them. It takes a record only if
strict JSON of plain types says it all and every expression of the feed is one that Polars computes alike. What is left (another
form of time, a number where text was declared, an overflow, a heartbeat, a tombstone whose key takes care) goes to Spark, record by record,
and Spark decides. No record can shift another's columns: many are decoded in one call only where each is surely one document
(:mod:`millstream.decode.json_lines`), else each by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.debezium import Debezium
from millstream.decode.decimals import read_decimals
from millstream.decode.envelope import row_in
from millstream.decode.framed_envelopes import codecs_of, keys_in_json, values_in_json
from millstream.decode.repeated_fields import repeated
from millstream.decode.row_types import Kind, field_at, kind_of, record_type
from millstream.decode.rows import RowReader
from millstream.decode.timestamps import STAMP, read_dates, read_stamps
from millstream.event import Headers
from millstream.kernel.admission.gate import Admission, Gate
from millstream.kernel.admission.record import COLUMNS, is_used, placed_by
from millstream.kernel.exchange.chunk import Chunk
from millstream.kernel.state.store import NEVER
from millstream.log.heartbeat import PREFIX, Beat
from millstream.plan.build import Feed
from millstream.plan.prune_columns import narrowed
from millstream.relation.clauses import HEADERS
from millstream.relation.debezium import HIDDEN, OP, UNAVAILABLE, position_column
from millstream.relation.functions import Function
from millstream.relation.nodes import Column, Source
from millstream.relation.schema import fields_of
from millstream.scalar.compile import Scalar, compile_scalar, guarded, select_once
from millstream.scalar.function import with_calls

Booleans = npt.NDArray[np.bool_]

META: dict[str, pl.DataType] = {
    "_key": pl.String(), "_partition": pl.Int32(), "_offset": pl.Int64(), "_append_time": STAMP, "_timestamp": STAMP,
}  # fmt: skip
"""What a record has besides its columns."""
HEADERS_TYPE = pl.List(pl.Struct({"key": pl.String, "value": pl.String}))
"""Headers as they are here: expressions know them as a map."""
_DOUBT, _GONE = "_unsure", "_gone"
_READ = (pl.Datetime, pl.Date, pl.Decimal)
"""What is text or a number in JSON, and of which not every form is read here."""


class Records(NamedTuple):
    """Some records of one partition, in the order of their offsets, column by column; times are microseconds.

    Without keys, none of them is a heartbeat. Keys and timestamps may be left out where :meth:`Decoder.wants_all` says no, but for the keys of
    records without a value.
    """

    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64] | None
    appended: npt.NDArray[np.int64]
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    headers: Sequence[Headers | None] | None = None


class Decoder:
    """Decodes and packs what it can of a pipeline's records.

    ``utc`` says that the session's time zone is UTC, which is what a time without a zone is in. ``aside`` is the folder to which
    the sender of its chunks writes large ones.
    """

    def __init__(self, admission: Admission, *, utc: bool, aside: str = "") -> None:
        self.admission, self.utc, self.aside = admission, utc, aside
        self._codecs = codecs_of(feed.source for feed in admission.chain.feeds)
        self._feeds: dict[str, FeedDecoder | str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_feeds": None}  # compiled again where it runs

    @property
    def useful(self) -> bool:
        """Whether there is a topic it can decode."""
        return any(isinstance(feed, FeedDecoder) for feed in self.feeds.values())

    @property
    def types(self) -> dict[int, pl.Schema]:
        """The types of each feed's expressions, where it computes all of them; as Spark has them."""
        return {
            each.feed.number: pl.Schema({made.name: each.compiled[made.name].dtype for made in each.feed.expressions})
            for each in self.feeds.values()
            if isinstance(each, FeedDecoder)
        }

    @property
    def reserved(self) -> bytes:
        """How keys begin that must be looked at: it may be a heartbeat, which only Spark reads."""
        return PREFIX

    def wants_all(self, topic: str) -> bool:
        """Whether an expression of this topic looks at a record's key, timestamp or headers."""
        feed = self.feeds.get(topic)
        return not isinstance(feed, FeedDecoder) or bool({"_key", "_timestamp", HEADERS} & feed.used)

    def is_table(self, topic: str) -> bool:
        """Whether a record without a value means something, by its key."""
        return self._feed(topic).source.kind == "table"

    def pack(
        self, topic: str, partition: int, records: Records, gate: Gate | None = None
    ) -> tuple[list[Chunk], Booleans]:
        """Pack records, which are admitted if there is a gate; also say which ones are left for Spark."""
        decoder = self.feeds.get(topic)
        frame, left = None, np.ones(len(records.values), bool)
        if isinstance(decoder, FeedDecoder) and len(left):
            frame, left = decoder.decode(partition, records)
        feed = self._feed(topic)
        if gate is not None:
            return list(self.admission.pass_gate(feed, partition, frame, gate, whole=not left.any())), left
        return list(
            self.admission.pack_feed(feed, partition, frame)
        ) if frame is not None and frame.height else [], left

    def gate(self, topic: str, watermark: int | None, beats: Sequence[Beat] = ()) -> Gate | None:
        """The gate of a partition, where its topic is admitted as it is read; the watermark is None if there is none yet."""
        feed, before = self._feed(topic), NEVER if watermark is None else watermark
        return Gate(before, beats) if feed.judged and not self.admission.chain.staged(feed) else None

    def tell(self, beats: Sequence[Beat]) -> list[Chunk]:
        """The heartbeats of a partition whose topic is admitted in a stage."""
        return self.admission.tell(beats)

    def leave(self, topic: str, partition: int, gate: Gate) -> list[Chunk]:
        """The marks that follow a partition's last record."""
        return list(self.admission.leave_gate(self._feed(topic), partition, gate))

    def _feed(self, topic: str) -> Feed:
        return next(feed for feed in self.admission.chain.feeds if feed.source.topic == topic)

    @property
    def feeds(self) -> Mapping[str, FeedDecoder | str]:
        """For each topic its decoder, or what only Spark can compute of it."""
        if self._feeds is None:
            self._feeds = {
                feed.source.topic: _decoder(
                    feed, self.utc, self.admission.chain.functions, self._codecs.get(feed.source.topic)
                )
                for feed in self.admission.chain.feeds
            }
        return self._feeds


def _decoder(feed: Feed, utc: bool, functions: Iterable[Function], codec: Debezium | None) -> FeedDecoder | str:
    """The decoder of a feed, or what only Spark can compute of it."""
    source = feed.source
    if source.codec not in ("json", "confluent-json", "debezium", "debezium-avro"):
        return f"codec {source.codec}"
    if source.time is not None and source.time.sent is not None:
        return f"column {source.time.column} by a device's clock"
    columns: dict[str, Kind | dict[str, Kind]] = {}
    dtypes = META | {HEADERS: HEADERS_TYPE}
    for column in (*narrowed(feed).columns, *_hidden(source)):
        fields = fields_of(column.type)
        kinds = {field.name: kind_of(field) for field in fields or (column,)}
        if unknown := [name for name, kind in kinds.items() if kind is None]:
            return f"column {column.name} {column.type}" + (f", for its field {unknown[0]}" if fields else "")
        known = {name: kind for name, kind in kinds.items() if kind is not None}
        columns[column.name] = known if fields else known[column.name]
        dtypes |= {f"{column.name}.{name}" if fields else name: dtype for name, (_, dtype) in known.items()}
    if source.in_envelopes and _key_of(source, columns) is None:
        return f"a struct as a key of {source.name}"
    wanted = {each.name: each.expression for each in feed.expressions}
    guards = {each.name: each.guard for each in feed.expressions if each.guard}
    if source.time is not None and source.time.said:
        wanted["_t"] = f"unix_micros({source.time.said})"
    if source.sequence is not None:
        wanted["_who"] = f"cast(({source.sequence.producer}) AS string)"
        wanted["_nth"] = f"cast(({source.sequence.number}) AS bigint)"
    compiled = {}
    for name, sql in wanted.items():
        guard = None
        if name in guards:
            guard = compile_scalar(
                guards[name], dtypes, utc=utc, functions=functions, final=True, label=f"{name}_guard"
            )
            if guard is None:
                return guards[name]
        made = compile_scalar(sql, dtypes, utc=utc, functions=functions, rows=guard, label=name)
        if made is None:
            return sql
        compiled[name] = made if guard is None else guarded(made, guard)
    return FeedDecoder(feed, columns, compiled, utc, codec)


def _hidden(source: Source) -> tuple[Column, ...]:
    """What the number of a change is made of, behind the columns of its row."""
    numbered = source.in_envelopes and source.sequence is not None
    return tuple(Column(name, kind) for name, kind in HIDDEN.items()) if numbered else ()


def _key_of(source: Source, columns: Mapping[str, Kind | dict[str, Kind]]) -> dict[str, Kind] | None:
    """The kinds of a table's key columns; None if one of them is a struct."""
    kinds = {name: columns[name] for name in source.key} if source.kind == "table" else {}
    return (
        {name: kind for name, kind in kinds.items() if isinstance(kind, tuple)}
        if all(isinstance(each, tuple) for each in kinds.values())
        else None
    )


class FeedDecoder:
    """Decodes the records of one topic; a field of a struct is a column like any other."""

    def __init__(
        self,
        feed: Feed,
        columns: Mapping[str, Kind | dict[str, Kind]],
        compiled: Mapping[str, Scalar],
        utc: bool,
        codec: Debezium | None,
    ) -> None:
        self.feed, self.columns, self.compiled, self.codec = feed, columns, compiled, codec
        self._inner = {
            name: record_type(name, {field: python for field, (python, _) in kind.items()})
            for name, kind in columns.items()
            if isinstance(kind, dict)
        }
        types = {
            name: self._inner.get(name, kind[0] if isinstance(kind, tuple) else None) for name, kind in columns.items()
        }
        source = feed.source
        self._utc = utc
        self._rows = RowReader(source, types, _key_of(source, columns) or {})
        self.calls = [each for made in compiled.values() for each in made.calls]
        read = [made.value for made in compiled.values()] + [
            part for each in self.calls for part in (each.rows, *each.arguments)
        ]
        self.used = {name for each in read for name in each.meta.root_names()}
        said = source.time is not None and bool(
            source.time.said
        )  # by an expression, and looked at where that is computed
        self._needed = [] if said else [name for name in placed_by(source) if name not in META]
        if source.time is not None and not said:
            self.used.add(source.time.column)

    def decode(self, partition: int, records: Records) -> tuple[pl.DataFrame, Booleans]:
        """The rows for admission of the records that need no Spark, and a mask of the records that do."""
        if self.codec is not None:
            in_json, keys = values_in_json(self.codec, records.values), keys_in_json(self.codec, records.keys)
            records = records._replace(values=in_json, keys=keys)
        found, deleted, left = self._rows.read(records.values, records.keys)
        at = np.flatnonzero(~left)
        base = self._base(partition, records, found, at).with_columns(pl.Series(_GONE, deleted))
        time = self.feed.source.time
        fixed: dict[str, Any] = {
            "_o": pl.col("_offset"),
            "_a": pl.col("_append_time").dt.epoch("us"),
            "_t": pl.col(time.column).dt.epoch("us") if time and not time.said else None,
            "_bad": pl.lit(None, pl.String),
            "_beat": pl.lit(None, pl.Int64),
            "_deleted": pl.col(_GONE),
            **{name: made.value for name, made in self.compiled.items()},
        }
        used = [name for name in COLUMNS if is_used(self.feed, name)]
        wanted = [*used, *(each.name for each in self.feed.expressions)]
        doubts = [made.unsure.fill_null(False) for made in self.compiled.values() if made.unsure is not None]
        if time and time.said:
            doubts.append(self.compiled["_t"].value.is_null())
        values = (fixed[name].alias(name) for name in wanted)
        frame = select_once(with_calls(base, self.calls), *values, pl.any_horizontal(_DOUBT, *doubts).alias(_DOUBT))
        unsure = frame.get_column(_DOUBT).to_numpy()
        left[at[unsure]] = True
        frame = frame.drop(_DOUBT)
        return frame.filter(~unsure) if unsure.any() else frame, left

    def _columns(self, found: list[Any]) -> Iterator[tuple[str, Kind, list[Any]]]:
        """The values of each column, those of a struct's fields under both names."""
        for index, (name, kind) in enumerate(self.columns.items()):
            values = field_at(index)(found)
            if isinstance(kind, tuple):
                yield name, kind, values
                continue
            nothing = self._inner[name]()  # where there is no struct, its fields are null
            values = [value or nothing for value in values]
            for place, (field, inner) in enumerate(kind.items()):
                yield f"{name}.{field}", inner, field_at(place)(values)

    def _series(self, values: list[Any], dtype: pl.DataType) -> pl.Series:
        """The values of a column; null also where only Spark can tell what is written there."""
        match dtype:
            case pl.Datetime():
                return read_stamps(values, utc=self._utc)
            case pl.Date():
                return read_dates(values)
            case pl.Decimal():
                return read_decimals(values, dtype)
        return pl.Series(values, dtype=dtype)

    def _base(self, partition: int, records: Records, found: list[Any], at: npt.NDArray[np.intp]) -> pl.DataFrame:
        """The declared columns, those of a record, and which rows have something in them that only Spark reads."""
        unsure = np.zeros(len(at), bool)
        made: dict[str, pl.Series] = {}
        times = Counter[str]()
        for name, (_, dtype), values in self._columns(found):
            made[name] = read = self._series(values, dtype)
            if isinstance(dtype, pl.Datetime | pl.Date):
                times[name.rpartition(".")[2]] += len(read) - read.null_count()
            if isinstance(dtype, _READ) and read.null_count():
                there = np.fromiter((value is not None for value in values), bool, len(values))
                unsure |= read.is_null().to_numpy() & there
        in_envelopes = self.feed.source.in_envelopes
        unsure |= repeated(records.values, at, times, row_in if in_envelopes else None)
        if in_envelopes:
            unsure |= _without_sense(made)
        made["_partition"] = pl.repeat(partition, len(at), dtype=pl.Int32, eager=True)
        made["_offset"] = pl.Series(records.offsets[at])
        made["_append_time"] = pl.Series(records.appended[at]).cast(STAMP)
        for name in self._needed:
            unsure |= made[name].is_null().to_numpy()
        if "_timestamp" in self.used and records.timestamps is not None:
            made["_timestamp"] = pl.Series(records.timestamps[at]).cast(STAMP)
        if "_key" in self.used and records.keys is not None:
            keys = [_text(records.keys[index]) for index in at]
            made["_key"] = pl.Series([key for key, _ in keys], dtype=pl.String)
            unsure |= np.array([not valid for _, valid in keys], bool)
        if HEADERS in self.used:
            found_headers = [(records.headers[index] if records.headers is not None else None) or () for index in at]
            made[HEADERS], unknown = _headers(found_headers)
            unsure |= unknown
        return pl.DataFrame({**made, _DOUBT: unsure})


def _without_sense(made: Mapping[str, pl.Series]) -> Booleans:
    """Which changes lack a value that was not sent, or the number by which repeats are told."""
    texts = [each == UNAVAILABLE for each in made.values() if each.dtype == pl.String]
    lacking = pl.select(pl.any_horizontal(pl.lit(False), *(each.fill_null(False) for each in texts))).to_series()
    if OP in made:
        op, lsn, file, pos = (made[name] for name in (OP, *map(position_column, ("lsn", "file", "pos"))))
        lacking |= (op != "r").fill_null(False) & lsn.is_null() & (file.is_null() | pos.is_null())
    return lacking.to_numpy()


def _headers(found: Sequence[Headers]) -> tuple[pl.Series, Booleans]:
    """Headers as text, and which records have some that are none."""
    unknown = np.zeros(len(found), bool)
    made: list[list[dict[str, str | None]]] = []
    for index, headers in enumerate(found):
        texts = [(name, *_text(value)) for name, value in headers]
        unknown[index] = not all(valid for _, _, valid in texts)
        made.append([{"key": name, "value": value} for name, value, _ in texts])
    return pl.Series(made, dtype=HEADERS_TYPE), unknown


def _text(key: bytes | None) -> tuple[str | None, bool]:
    try:
        return None if key is None else key.decode(), True
    except UnicodeDecodeError:
        return None, False
