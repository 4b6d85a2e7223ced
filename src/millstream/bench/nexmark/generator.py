"""Nexmark's events: people, auctions and bids of an auction site in one mixed stream of JSON documents.

An event is a function of the seed and of its number, so fewer events are the beginning of more. Everything is made in
columns, a block of events at a time: some of numpy's and Polars' loops for each, none of Python's.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

BLOCK = 50_000
"""Events that are made at once; what is random in them begins anew with each block."""
RATE = 10_000.0
"""Events in a second of event time."""
LATE = 3_000
"""Milliseconds by which an event may arrive late."""
FIRST_ID = 1_000
STATES = ("OR", "ID", "CA", "WA", "AZ", "WY")
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")

_BEGIN = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
_ROUND = 50  # one person, three auctions, forty-six bids
_AUCTIONS = 3
_LATE_SHARE = 0.1
_IN_FLIGHT = 100  # auctions that get bids
_ACTIVE = 1_000  # people who sell and bid
_HOT = 100  # one of so many ids is the hot one for a while
_CHANNELS = 10_000
_CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
_FIRST = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")

Ints = npt.NDArray[np.int64]


def events(count: int, seed: int = 0, *, rate: float = RATE) -> Iterator[list[bytes]]:
    """The first ``count`` events as JSON documents, in the order in which they arrive."""
    for column in columns(count, seed, rate=rate):
        yield column.cast(pl.Binary).to_list()


def columns(count: int, seed: int = 0, *, rate: float = RATE) -> Iterator[pl.Series]:
    """The same as columns of text."""
    channels = _channels(np.random.default_rng((seed, 0)))
    for number, first in enumerate(range(0, count, BLOCK)):
        made = _block(np.random.default_rng((seed, 1, number)), first, rate, channels)
        yield made.head(count - first)


def _block(chance: np.random.Generator, first: int, rate: float, channels: pl.DataFrame) -> pl.Series:
    """One block: each kind on its own, then all in the order of their numbers."""
    numbers = np.arange(first, first + BLOCK)
    place = numbers % _ROUND
    late = np.where(chance.random(BLOCK) < _LATE_SHARE, chance.integers(0, LATE + 1, BLOCK), 0)
    times = np.maximum(_BEGIN + (numbers * 1_000 / rate).astype(np.int64) - late, _BEGIN)
    kinds = np.minimum(place, 1) + (place > _AUCTIONS)
    parts = []
    for kind, make in enumerate((_people, _auctions)):
        here = kinds == kind
        parts.append(make(chance, numbers[here], times[here], rate))
    here = kinds == 2
    parts.append(_bids(chance, numbers[here], times[here], channels))
    made = pl.concat(parts)
    order = np.empty(BLOCK, np.int64)
    order[np.argsort(kinds, kind="stable")] = np.arange(BLOCK)
    return made.gather(order)


def _people(chance: np.random.Generator, numbers: Ints, times: Ints, _: float) -> pl.Series:
    size = len(numbers)
    first, last = chance.integers(0, len(_FIRST), size), chance.integers(0, len(_LAST), size)
    frame = pl.DataFrame({
        "id": FIRST_ID + numbers // _ROUND,
        "name": pl.Series(_FIRST).gather(first) + " " + pl.Series(_LAST).gather(last),
        "emailAddress": _text(chance, chance.integers(4, 8, size)) + "@" + _text(chance, chance.integers(3, 6, size)) + ".com",
        "creditCard": _cards(chance, size),
        "city": pl.Series(_CITIES).gather(chance.integers(0, len(_CITIES), size)),
        "state": pl.Series(STATES).gather(chance.integers(0, len(STATES), size)),
    })  # fmt: skip
    return _documents(frame.with_columns(extra=_padding(chance, frame, 200)), 0, times)


def _auctions(chance: np.random.Generator, numbers: Ints, times: Ints, rate: float) -> pl.Series:
    size, people = len(numbers), numbers // _ROUND
    # As many auctions as are in flight begin while one of them runs, in the mean.
    longest = max(1, int(2 * _IN_FLIGHT * _ROUND / _AUCTIONS * 1_000 / rate))
    price = _prices(chance, size)
    frame = pl.DataFrame({
        "id": FIRST_ID + people * _AUCTIONS + numbers % _ROUND - 1,
        "itemName": _text(chance, chance.integers(5, 20, size)),
        "description": _text(chance, chance.integers(20, 100, size)),
        "initialBid": price,
        "reserve": price + _prices(chance, size),
        "expires": _shown(times + chance.integers(1, longest + 1, size)),
        "seller": _person(chance, people, 0),
        "category": chance.integers(10, 15, size),
    })  # fmt: skip
    return _documents(frame.with_columns(extra=_padding(chance, frame, 500)), 1, times)


def _bids(chance: np.random.Generator, numbers: Ints, times: Ints, channels: pl.DataFrame) -> pl.Series:
    size, people = len(numbers), numbers // _ROUND
    newest = people * _AUCTIONS + _AUCTIONS - 1
    oldest = np.maximum(newest - _IN_FLIGHT + 1, 0)
    hot = chance.random(size) < 0.5
    auction = np.where(hot, newest // _HOT * _HOT, chance.integers(oldest, newest + 1))
    hot = chance.random(size) < 0.5
    channel = np.where(
        hot,
        chance.integers(0, len(HOT_CHANNELS), size),
        chance.integers(len(HOT_CHANNELS), channels.height, size),
    )
    frame = pl.DataFrame({
        "auction": FIRST_ID + auction,
        "bidder": _person(chance, people, 1),
        "price": _prices(chance, size),
        "channel": channels["channel"].gather(channel),
        "url": channels["url"].gather(channel),
        "extra": _text(chance, _about(chance, np.full(size, 100 - 4 * 8))),
    })  # fmt: skip
    return _documents(frame, 2, times)


def _person(chance: np.random.Generator, people: Ints, hot_place: int) -> Ints:
    """Somebody who is there already: three times of four the hot one of the moment, else one who came lately."""
    hot = chance.random(len(people)) < 0.75
    famous = np.minimum(people // _HOT * _HOT + hot_place, people)
    lately = chance.integers(np.maximum(people - _ACTIVE + 1, 0), people + 1)
    chosen: Ints = FIRST_ID + np.where(hot, famous, lately)
    return chosen


def _prices(chance: np.random.Generator, size: int) -> Ints:
    made: Ints = np.round(10 ** (6 * chance.random(size)) * 100).astype(np.int64)
    return made


def _channels(chance: np.random.Generator) -> pl.DataFrame:
    """Every channel with its url; nine of ten that are not hot have their number in it."""
    size = len(HOT_CHANNELS) + _CHANNELS
    folders = [_text(chance, np.full(size, 5)) for _ in range(3)]
    numbers = pl.Series("n", np.arange(size) - len(HOT_CHANNELS))
    told = pl.Series(chance.random(size) < 0.9) & (numbers >= 0)
    frame = pl.DataFrame({"n": numbers, "told": told, "a": folders[0], "b": folders[1], "c": folders[2]})
    hot = pl.Series([*HOT_CHANNELS, *[None] * _CHANNELS])
    url = pl.format("https://www.nexmark.com/{}/{}/{}/item.htm?query=1", "a", "b", "c")
    return frame.select(
        channel=pl.coalesce(pl.lit(hot), pl.format("channel-{}", "n")),
        url=pl.when("told").then(pl.format("{}&channel_id={}", url, "n")).otherwise(url),
    )


def _cards(chance: np.random.Generator, size: int) -> pl.Series:
    digits = pl.DataFrame({str(part): chance.integers(1_000, 10_000, size) for part in range(4)})
    return digits.select(pl.concat_str(pl.all(), separator=" ")).to_series()


def _padding(chance: np.random.Generator, frame: pl.DataFrame, wanted: int) -> pl.Series:
    """What makes a row about as large as is wanted; a number takes eight bytes, and so does the time."""
    texts = frame.select(pl.col(pl.String).str.len_bytes()).sum_horizontal().to_numpy()
    numbers = 8 * (sum(kind.is_numeric() for kind in frame.dtypes) + 1)
    return _text(chance, _about(chance, np.maximum(wanted - numbers - texts.astype(np.int64), 5)))


def _about(chance: np.random.Generator, lengths: Ints) -> Ints:
    varied: Ints = np.round(lengths * chance.uniform(0.8, 1.2, len(lengths))).astype(np.int64)
    return varied


def _text(chance: np.random.Generator, lengths: Ints) -> pl.Series:
    """Lower-case letters, as many as each row is to have."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    letters = chance.integers(97, 123, int(ends[-1]), np.uint8)
    made = pa.LargeStringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(letters))
    series = pl.from_arrow(made)
    assert isinstance(series, pl.Series)  # noqa: S101
    return series


def _shown(times: Ints) -> pl.Series:
    """Times as text; few of them differ."""
    few, which = np.unique(times, return_inverse=True)
    return pl.Series(few).cast(pl.Datetime("ms")).dt.to_string("%Y-%m-%d %H:%M:%S%.3f").gather(which)


def _documents(frame: pl.DataFrame, kind: int, times: Ints) -> pl.Series:
    """Rows as JSON; no text here has a character that JSON escapes."""
    kinds = ("person", "auction", "bid")
    pieces: list[pl.Expr] = []
    text = f'{{"event_type":{kind},' + "".join(f'"{other}":null,' for other in kinds[:kind]) + f'"{kinds[kind]}":{{'
    for name, dtype in frame.schema.items():
        quote = "" if dtype.is_numeric() else '"'
        pieces += [pl.lit(f'{text}"{name}":{quote}'), pl.col(name)]
        text = f"{quote},"
    text = f"{text[:-1]}}}," + "".join(f'"{other}":null,' for other in kinds[kind + 1 :]) + '"dateTime":"'
    pieces += [pl.lit(text), pl.lit(_shown(times)), pl.lit('"}')]
    return frame.select(value=pl.concat_str(pieces)).to_series()
