"""The same questions as one Polars job over the files: nothing arrives, nothing is kept, no window waits for its end.

This is no streaming system but the limit of one: what the work itself costs on this machine, each column decoded that a
question needs, the answer in memory and let go.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from polars import col

from millstream.bench.nexmark.data import files_of
from millstream.bench.nexmark.peers.layout import Input

_TEXT, _WHOLE = pl.String(), pl.Int64()
SCHEMA = {
    "event_type": pl.Int32(),
    "person": pl.Struct({"id": _WHOLE, **dict.fromkeys(("name", "emailAddress", "creditCard", "city", "state", "extra"), _TEXT)}),
    "auction": pl.Struct(
        {
            "id": _WHOLE,
            "itemName": _TEXT,
            "description": _TEXT,
            "initialBid": _WHOLE,
            "reserve": _WHOLE,
            "expires": _TEXT,
            "seller": _WHOLE,
            "category": _WHOLE,
            "extra": _TEXT,
        }
    ),
    "bid": pl.Struct(
        {"auction": _WHOLE, "bidder": _WHOLE, "price": _WHOLE, "channel": _TEXT, "url": _TEXT, "extra": _TEXT}
    ),
    "dateTime": _TEXT,
}  # fmt: skip
_BID = ("auction", "bidder", "price", "dateTime", "extra")
_LONG_BID = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")
_AUCTION = ("itemName", "description", "initialBid", "reserve", "opened", "expires", "seller", "category", "itemExtra")

_NOT_ASKED = "not asked: it is about files, about the clock, or a pattern of rows"

Rows = list[list[Any]]


class Events:
    """What is in a folder, by kind; nothing is read before a job asks for it."""

    def __init__(self, folder: Path) -> None:
        self._all = pl.scan_ndjson(files_of(folder), schema=SCHEMA).with_columns(_time("dateTime"))

    @property
    def person(self) -> pl.LazyFrame:
        """People."""
        return self._kind(0, "person")

    @property
    def auction(self) -> pl.LazyFrame:
        """Auctions."""
        return self._kind(1, "auction").with_columns(_time("expires"))

    @property
    def bid(self) -> pl.LazyFrame:
        """Bids."""
        return self._kind(2, "bid")

    @property
    def valid(self) -> pl.LazyFrame:
        """Auctions with each of their valid bids."""
        bids = self.bid.select("auction", "bidder", "price", bidTime="dateTime", bidExtra="extra")
        both = self.auction.join(bids, left_on="id", right_on="auction", coalesce=False)
        return both.filter(col("bidTime").is_between(col("dateTime"), col("expires")))

    def _kind(self, number: int, name: str) -> pl.LazyFrame:
        return self._all.filter(col("event_type") == number).select(col(name).struct.unnest(), "dateTime")


class Polars:
    """Polars in this process."""

    def seconds(self, system: str, query: str, given: Input) -> float | str:  # noqa: ARG002
        """Time a job from its start to its end; or say why there is none."""
        if query not in QUERIES:
            return _NOT_ASKED
        began = time.perf_counter()
        QUERIES[query](Events(given.folder)).collect(engine="streaming")
        return time.perf_counter() - began

    def answer(self, system: str, query: str, given: Input) -> Rows | str:  # noqa: ARG002
        """Give what a job gives; or say why there is none."""
        if query not in QUERIES:
            return _NOT_ASKED
        made = QUERIES[query](Events(given.folder)).collect(engine="streaming")
        times = pl.selectors.datetime().dt.to_string("%Y-%m-%d %H:%M:%S%.3f")
        return [list(row) for row in made.with_columns(times, pl.selectors.decimal().cast(pl.Float64)).iter_rows()]

    def close(self) -> None:
        """Nothing is up."""


def _q3(events: Events) -> pl.LazyFrame:
    sold = events.auction.filter(col("category") == 10).select("id", "seller")
    people = events.person.filter(col("state").is_in(["OR", "ID", "CA"])).select("name", "city", "state", seller="id")
    return people.join(sold, on="seller").select("name", "city", "state", "id")


def _closed(events: Events) -> pl.LazyFrame:
    return events.valid.group_by("id", "category", "seller", "expires").agg(final=col("price").max())


def _q5(events: Events) -> pl.LazyFrame:
    start = pl.concat_list(*(col("dateTime").dt.truncate("2s") - pl.duration(seconds=2 * hop) for hop in range(5)))
    counted = events.bid.group_by("auction", col("dateTime").dt.truncate("2s")).agg(num=pl.len())
    counted = counted.with_columns(window_start=start).explode("window_start")
    counted = counted.group_by("auction", "window_start").agg(col("num").sum())
    most = counted.filter(col("num") == col("num").max().over("window_start"))
    return most.select("auction", "num", "window_start", window_end=col("window_start") + pl.duration(seconds=10))


def _q7(events: Events) -> pl.LazyFrame:
    window = col("dateTime").dt.truncate("10s")
    best = events.bid.filter(col("price") == col("price").max().over(window))
    return best.select("auction", "price", "bidder", "dateTime", "extra")


def _q8(events: Events) -> pl.LazyFrame:
    window = col("dateTime").dt.truncate("10s").alias("window")
    sellers = events.auction.select(window, id="seller")
    return events.person.select("id", "name", window).join(sellers, on=["id", "window"], how="semi").unique()


def _q9(events: Events) -> pl.LazyFrame:
    own = (
        "id",
        "itemName",
        "description",
        "initialBid",
        "reserve",
        "dateTime",
        "expires",
        "seller",
        "category",
        "extra",
    )
    best = events.valid.sort("price", "bidTime", descending=[True, False]).group_by("id", maintain_order=True).first()
    return best.select(*own, "auction", "bidder", "price", "bidTime", "bidExtra")


def _q11(events: Events) -> pl.LazyFrame:
    gap = pl.duration(seconds=10)
    bids = events.bid.select("bidder", "dateTime").sort("bidder", "dateTime")
    new = (col("dateTime").diff() > gap) | (col("bidder") != col("bidder").shift())
    numbered = bids.with_columns(session=new.fill_null(True).cum_sum())
    made = numbered.group_by("bidder", "session").agg(
        n=pl.len(), began=col("dateTime").min(), last=col("dateTime").max()
    )
    return made.select("bidder", "n", "began", col("last") + gap)


def _q13(events: Events) -> pl.LazyFrame:
    side = pl.LazyFrame({"key": range(10_000)}).with_columns(value=col("key").cast(pl.String))
    bids = events.bid.with_columns(key=col("auction") % 10_000)
    return bids.join(side, on="key").select(*_BID[:4], "value")


def _q14(events: Events) -> pl.LazyFrame:
    hour = col("dateTime").dt.hour()
    named = pl.when(hour.is_between(8, 18)).then(pl.lit("dayTime")).when(hour.is_in([7, 19])).then(pl.lit("otherTime"))
    bids = events.bid.with_columns(less=_less()).filter(col("less").is_between(1_000_000, 50_000_000, closed="none"))
    counted = col("extra").str.count_matches("c", literal=True).alias("c_counts")
    return bids.select(
        "auction", "bidder", "less", named.otherwise(pl.lit("nightTime")).alias("type"), "dateTime", "extra", counted
    )


def _counts(*what: str) -> list[pl.Expr]:
    price = col("price")
    ranges = (pl.lit(True), price < 10_000, (price >= 10_000) & (price < 1_000_000), price >= 1_000_000)
    made = [some.sum() if some is not ranges[0] else pl.len() for some in ranges]
    made += [col(name).filter(some).n_unique() for name in what for some in ranges]
    return [each.alias(f"n{at}") for at, each in enumerate(made)]


def _q21(events: Events) -> pl.LazyFrame:
    names = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    known = col("channel").str.to_lowercase().replace_strict(names, default=None, return_dtype=pl.String)
    told = pl.coalesce(known, col("url").str.extract(r"&channel_id=([^&]*)", 1)).alias("channel_id")
    return events.bid.select("auction", "bidder", "price", "channel", told).filter(col("channel_id") != "")


def _q22(events: Events) -> pl.LazyFrame:
    parts = col("url").str.split("/")
    folders = [parts.list.get(at, null_on_oob=True).alias(f"dir{at - 2}") for at in (3, 4, 5)]
    return events.bid.select("auction", "bidder", "price", "channel", *folders)


def _less() -> pl.Expr:
    return col("price") * pl.lit("0.908").cast(pl.Decimal(38, 3))


def _time(name: str) -> pl.Expr:
    return (
        col(name).str.replace_all("[TZ]", " ").str.strip_chars().str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us")
    )


_DAY = col("dateTime").dt.to_string("%Y-%m-%d").alias("day")

QUERIES: dict[str, Callable[[Events], pl.LazyFrame]] = {
    "q0": lambda events: events.bid.select(_BID),
    "q1": lambda events: events.bid.select("auction", "bidder", _less(), "dateTime", "extra"),
    "q2": lambda events: events.bid.filter(col("auction") % 123 == 0).select("auction", "price"),
    "q3": _q3,
    "q4": lambda events: _closed(events).group_by("category").agg(col("final").sum() // pl.len()),
    "q5": _q5,
    "q6": lambda events: (
        _closed(events)
        .sort("expires", "id", descending=True)
        .group_by("seller", maintain_order=True)
        .agg(col("final").head(10).sum() // col("final").head(10).len())
    ),
    "q7": _q7,
    "q8": _q8,
    "q9": _q9,
    "q11": _q11,
    "q13": _q13,
    "q14": _q14,
    "q15": lambda events: events.bid.group_by(_DAY).agg(_counts("bidder", "auction")),
    "q16": lambda events: (
        events.bid.with_columns(_DAY, minute=col("dateTime").dt.to_string("%H:%M"))
        .group_by("channel", "day")
        .agg(col("minute").max(), *_counts("bidder", "auction"))
    ),
    "q17": lambda events: events.bid.group_by("auction", _DAY).agg(
        *_counts(),
        col("price").min().alias("least"),
        col("price").max().alias("most"),
        (col("price").sum() // pl.len()).alias("mean"),
        col("price").sum().alias("sum"),
    ),
    "q18": lambda events: (
        events.bid.sort("dateTime", descending=True)
        .group_by("bidder", "auction", maintain_order=True)
        .first()
        .select(_LONG_BID)
    ),
    "q19": lambda events: (
        events.bid.with_columns(rank=col("price").rank("ordinal", descending=True).over("auction"))
        .filter(col("rank") <= 10)
        .select(*_LONG_BID, "rank")
    ),
    "q20": lambda events: events.bid.join(
        events.auction.filter(col("category") == 10).rename({"dateTime": "opened", "extra": "itemExtra"}),
        left_on="auction",
        right_on="id",
    ).select(*_LONG_BID, *_AUCTION),
    "q21": _q21,
    "q22": _q22,
}
