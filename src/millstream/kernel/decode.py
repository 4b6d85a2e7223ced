"""JSON records decoded and packed where they are read, without a row in the JVM, where that is certain to give what Spark gives.

Spark's ``from_json`` and Spark SQL define what a record means; this is a shortcut for most of them. It takes a record only if
strict JSON of plain types says it all and every expression of the feed is one that Polars computes alike. What is left (another
form of time, a number where text was declared, an overflow, a heartbeat, a tombstone) goes to Spark, record by record,
and Spark decides. Each record is decoded by itself, so no record can shift another's columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.kernel.admit import HEARTBEAT_KEY
from millstream.kernel.chunk import Chunk
from millstream.kernel.host import COLUMNS, Host, is_used
from millstream.kernel.scalar import Scalar, compile_scalar
from millstream.plan.chain import Feed
from millstream.plan.narrow import narrowed
from millstream.plan.nodes import Column
from millstream.plan.schema import fields_of

Booleans = npt.NDArray[np.bool_]

_STAMP = pl.Datetime("us", "UTC")
_TIME = r"^(19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|\+00:00)"
_DATE = r"^(19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}$"
_META: dict[str, pl.DataType] = {
    "_key": pl.String(), "_partition": pl.Int32(), "_offset": pl.Int64(), "_append_time": _STAMP, "_timestamp": _STAMP,
}  # fmt: skip
_MARK = HEARTBEAT_KEY.encode()
# The JVM's parser refuses numbers of more than 1,000 digits and nests at most 1,000 deep; ours does not mind.
_LONG = 900
_MANY_DIGITS = re.compile(rb"[0-9]{900}")


def _whole(bits: int) -> Any:
    limit = 1 << (bits - 1)
    return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]


_KINDS: dict[str, tuple[Any, pl.DataType]] = {
    "bigint": (_whole(64), pl.Int64()),
    "int": (_whole(32), pl.Int32()),
    "smallint": (_whole(16), pl.Int16()),
    "tinyint": (_whole(8), pl.Int8()),
    "double": (float, pl.Float64()),
    "string": (str, pl.String()),
    "boolean": (bool, pl.Boolean()),
    "timestamp": (str, _STAMP),
    "date": (str, pl.Date()),
}
_Kind: TypeAlias = tuple[Any, pl.DataType]
_SAME = {
    "long": "bigint",
    "integer": "int",
    "short": "smallint",
    "byte": "tinyint",
    "timestamp_ltz": "timestamp",
}


class Records(NamedTuple):
    """Some records of one partition, in the order of their offsets, column by column; times are microseconds.

    Without keys, none of them is reserved. Keys and timestamps may be left out where :meth:`Decoder.wants_all` says no.
    """

    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64] | None
    appended: npt.NDArray[np.int64]
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]


class Decoder:
    """Decodes and packs what it can of a pipeline's records.

    ``utc`` says that the session's time zone is UTC, which is what a time without a zone is in.
    """

    def __init__(self, host: Host, *, utc: bool) -> None:
        self.host, self.utc = host, utc
        self._feeds: dict[str, FeedDecoder | str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"host": self.host, "utc": self.utc, "_feeds": None}  # compiled again where it runs

    @property
    def useful(self) -> bool:
        """Whether there is a topic it can decode."""
        return any(isinstance(feed, FeedDecoder) for feed in self.feeds.values())

    @property
    def reserved(self) -> bytes:
        """How keys begin whose records only Spark reads: those of heartbeats."""
        return _MARK

    def wants_all(self, topic: str) -> bool:
        """Whether an expression of this topic looks at a record's key or timestamp."""
        feed = self.feeds.get(topic)
        return not isinstance(feed, FeedDecoder) or bool({"_key", "_timestamp"} & feed.used)

    def pack(self, topic: str, partition: int, records: Records) -> tuple[list[Chunk], Booleans]:
        """Pack records; also say which ones are left for Spark."""
        feed = self.feeds.get(topic)
        left = np.ones(len(records.values), bool)
        if not isinstance(feed, FeedDecoder) or not len(left):
            return [], left
        frame, left = feed.decode(partition, records)
        chunks = list(self.host.pack_feed(feed.feed, partition, frame)) if frame.height else []
        return chunks, left

    @property
    def feeds(self) -> Mapping[str, FeedDecoder | str]:
        """For each topic its decoder, or what only Spark can compute of it."""
        if self._feeds is None:
            self._feeds = {feed.source.topic: _decoder(feed, self.utc) for feed in self.host.chain.feeds}
        return self._feeds


def _decoder(feed: Feed, utc: bool) -> FeedDecoder | str:
    """The decoder of a feed, or what only Spark can compute of it."""
    source = feed.source
    if source.codec != "json":
        return f"codec {source.codec}"
    if source.time is not None and source.time.sent is not None:
        return f"column {source.time.column} by a device's clock"
    columns: dict[str, _Kind | dict[str, _Kind]] = {}
    dtypes = dict(_META)
    for column in narrowed(feed).columns:
        fields = fields_of(column.type)
        kinds = {field.name: _kind(field) for field in fields or (column,)}
        if unknown := [name for name, kind in kinds.items() if kind is None]:
            return f"column {column.name} {column.type}" + (f", for its field {unknown[0]}" if fields else "")
        known = {name: kind for name, kind in kinds.items() if kind is not None}
        columns[column.name] = known if fields else known[column.name]
        dtypes |= {f"{column.name}.{name}" if fields else name: dtype for name, (_, dtype) in known.items()}
    wanted = {each.name: each.expression for each in feed.expressions}
    if source.sequence is not None:
        wanted["_who"] = f"cast(({source.sequence.producer}) AS string)"
        wanted["_nth"] = f"cast(({source.sequence.number}) AS bigint)"
    compiled = {}
    for name, sql in wanted.items():
        made = compile_scalar(sql, dtypes)
        if made is None:
            return sql
        compiled[name] = made
    return FeedDecoder(feed, columns, compiled, utc)


def _kind(column: Column) -> _Kind | None:
    return _KINDS.get(_SAME.get(column.type.lower(), column.type.lower()))


class FeedDecoder:
    """Decodes the records of one topic; a field of a struct is a column like any other."""

    def __init__(
        self, feed: Feed, columns: Mapping[str, _Kind | dict[str, _Kind]], compiled: Mapping[str, Scalar], utc: bool
    ) -> None:
        self.feed, self.columns, self.compiled = feed, columns, compiled
        self._inner = {
            name: _record(name, {field: python for field, (python, _) in kind.items()})
            for name, kind in columns.items()
            if isinstance(kind, dict)
        }
        types = {
            name: self._inner.get(name, kind[0] if isinstance(kind, tuple) else None) for name, kind in columns.items()
        }
        self._decode = msgspec.json.Decoder(_record("record", types)).decode
        self._time = f"{_TIME}?$" if utc else f"{_TIME}$"
        source = feed.source
        self._needed = [source.time.column] if source.time else list(source.key) if source.kind == "table" else []
        self.used = {name for made in compiled.values() for name in made.value.meta.root_names()}

    def decode(self, partition: int, records: Records) -> tuple[pl.DataFrame, Booleans]:
        """What admission gets of the records that need no Spark; and which ones do."""
        found, left = self._values(records)
        at = np.flatnonzero(~left)
        base, unsure = self._base(partition, records, found, at)
        for made in self.compiled.values():
            if made.unsure is not None:
                unsure |= base.select(made.unsure.fill_null(False)).to_series().to_numpy()
        if unsure.any():
            left[at[unsure]] = True
            at, base = at[~unsure], base.filter(~unsure)
        time = self.feed.source.time
        fixed: dict[str, Any] = {
            "_o": pl.col("_offset"),
            "_a": pl.col("_append_time").dt.epoch("us"),
            "_t": pl.col(time.column).dt.epoch("us") if time else None,
            "_bad": pl.lit(None, pl.String),
            "_beat": pl.lit(None, pl.Int64),
            "_deleted": pl.lit(False),
            **{name: made.value for name, made in self.compiled.items()},
        }
        used = [name for name in COLUMNS if is_used(self.feed, name)]
        wanted = [*used, *(each.name for each in self.feed.expressions)]
        return base.select(fixed[name].alias(name) for name in wanted), left

    def _values(self, records: Records) -> tuple[list[Any], Booleans]:
        """The records that are strict JSON of the declared types."""
        left = np.zeros(len(records.values), bool)
        if max(map(len, filter(None, records.values)), default=0) > _LONG:
            left[:] = [value is not None and _beyond(value) for value in records.values]
        for index, key in enumerate(records.keys or ()):
            if key is not None and key.startswith(_MARK):
                left[index] = True
        if not left.any():
            try:
                return list(map(self._decode, records.values)), left  # type: ignore[arg-type]
            except _REFUSED:
                pass  # one of them; find out which
        found = []
        for index, value in enumerate(records.values):
            if not left[index]:
                try:
                    found.append(self._decode(value))  # type: ignore[arg-type]
                except _REFUSED:
                    left[index] = True
        return found, left

    def _columns(self, found: list[Any]) -> Iterator[tuple[str, _Kind, list[Any]]]:
        """The values of each column, those of a struct's fields under both names."""
        for index, (name, kind) in enumerate(self.columns.items()):
            values = list(map(attrgetter(f"f{index}"), found))
            if isinstance(kind, tuple):
                yield name, kind, values
                continue
            nothing = self._inner[name]()  # where there is no struct, its fields are null
            values = [value or nothing for value in values]
            for place, (field, inner) in enumerate(kind.items()):
                yield f"{name}.{field}", inner, list(map(attrgetter(f"f{place}"), values))

    def _base(
        self, partition: int, records: Records, found: list[Any], at: npt.NDArray[np.intp]
    ) -> tuple[pl.DataFrame, Booleans]:
        """The declared columns and those of a record, and which rows have something in them that only Spark reads."""
        unsure = np.zeros(len(at), bool)
        made: dict[str, pl.Series] = {}
        for name, (python, dtype), values in self._columns(found):
            if python is str and dtype != pl.String:
                text = pl.Series(values, dtype=pl.String)
                made[name] = _parsed(text, self._time if dtype == _STAMP else _DATE, dtype)
                unsure |= (made[name].is_null() & text.is_not_null()).to_numpy()
            else:
                made[name] = pl.Series(values, dtype=dtype)
        made["_partition"] = pl.repeat(partition, len(at), dtype=pl.Int32, eager=True)
        made["_offset"] = pl.Series(records.offsets[at])
        made["_append_time"] = pl.Series(records.appended[at]).cast(_STAMP)
        for name in self._needed:
            unsure |= made[name].is_null().to_numpy()
        if "_timestamp" in self.used and records.timestamps is not None:
            made["_timestamp"] = pl.Series(records.timestamps[at]).cast(_STAMP)
        if "_key" in self.used and records.keys is not None:
            keys = [_text(records.keys[index]) for index in at]
            made["_key"] = pl.Series([key for key, _ in keys], dtype=pl.String)
            unsure |= np.array([not valid for _, valid in keys], bool)
        return pl.DataFrame(made), unsure


def _record(name: str, types: Mapping[str, Any]) -> type[msgspec.Struct]:
    """A struct whose fields have these types, or are null or left out."""
    fields = [(f"f{index}", python | None, None) for index, python in enumerate(types.values())]
    return msgspec.defstruct(name, fields, rename={f"f{index}": each for index, each in enumerate(types)}, gc=False)


_REFUSED = (ValueError, TypeError, RecursionError)  # msgspec's own errors are of the first


def _beyond(value: bytes) -> bool:
    return value.count(b"[") + value.count(b"{") > _LONG or _MANY_DIGITS.search(value) is not None


def _text(key: bytes | None) -> tuple[str | None, bool]:
    try:
        return None if key is None else key.decode(), True
    except UnicodeDecodeError:
        return None, False


def _parsed(text: pl.Series, form: str, dtype: pl.DataType) -> pl.Series:
    """Times and dates of exactly this form; null for all others."""
    exact = pl.select(pl.when(text.str.contains(form)).then(text)).to_series()
    if dtype == pl.Date:
        return exact.str.to_date("%Y-%m-%d", strict=False)
    bare = exact.str.strip_suffix("Z").str.strip_suffix("+00:00").str.replace(" ", "T", literal=True)
    return bare.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False).dt.replace_time_zone("UTC")
