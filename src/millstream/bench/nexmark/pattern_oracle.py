"""What the answers to the patterns are, by plain loops over the bids of each pair of auction and bidder: slow, and easy to check by eye.

The bids of a pair are in the order of their times; those of one time are in the order in which they came, which is that of the files
and of the lines in them. It shares no code with the engine, and no regular expression over rows is in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl

from millstream.bench.nexmark.data import read_folder

_TIME, _WHOLE = pl.Datetime("us"), pl.Int64()
_UNDER = 10_000
_DROP = 50
_WITHIN = timedelta(seconds=5)


class Bid(NamedTuple):
    """What the patterns look at."""

    time: datetime
    price: int


Bids = list[Bid]
Rows = Iterator[tuple[datetime | int, ...]]


def dips(bids: Bids) -> Rows:
    """cep0: a bid, ever lower ones, then a higher one, at which the next may begin."""
    first = 0
    while first < len(bids):
        low = first
        while low + 1 < len(bids) and bids[low + 1].price < bids[low].price:
            low += 1
        if first < low < len(bids) - 1 and bids[low + 1].price > bids[low].price:
            yield bids[first].time, bids[low].time, bids[low + 1].time
            first = low + 1
        else:
            first += 1


def low_runs(bids: Bids, *, past: bool) -> Rows:
    """cep1 and cep2: the longest run under an average, ended by a bid; the next begins behind that bid, or at the run's second row."""
    first = 0
    while first < len(bids):
        end, total = first, 0
        while end < len(bids) and total + bids[end].price < _UNDER * (end - first + 1):
            total += bids[end].price
            end += 1
        found = first < end < len(bids)
        if found:
            yield bids[first].time, bids[end - 1].time, total // (end - first)
        first = end + 1 if found and past else first + 1


def drops(bids: Bids) -> Rows:
    """cep3: the first bid far enough under another one, soon enough; the next begins behind it."""
    first = 0
    while first < len(bids):
        start, floor = bids[first], bids[first].price - _DROP
        at = first + 1
        while at < len(bids) and bids[at].time - start.time < _WITHIN and bids[at].price > floor:
            at += 1
        if at < len(bids) and bids[at].time - start.time < _WITHIN and bids[at].price < floor:
            yield bids[at].time, start.price - bids[at].price
            first = at + 1
        else:
            first += 1


class _Pattern(NamedTuple):
    """How the bids of a pair are searched, and of which types the columns behind the pair are."""

    search: Callable[[Bids], Rows]
    columns: tuple[pl.DataType, ...]


_PATTERNS = {
    "cep0": _Pattern(dips, (_TIME, _TIME, _TIME)),
    "cep1": _Pattern(lambda bids: low_runs(bids, past=True), (_TIME, _TIME, _WHOLE)),
    "cep2": _Pattern(lambda bids: low_runs(bids, past=False), (_TIME, _TIME, _WHOLE)),
    "cep3": _Pattern(drops, (_TIME, _WHOLE)),
}


def matches(query: str, folder: Path) -> pl.DataFrame:
    """The answer of a query over the files of a folder, its columns numbered."""
    pattern = _PATTERNS[query]
    rows = [(*pair, *row) for pair, bids in bids_in_order(folder).items() for row in pattern.search(bids)]
    types = (_WHOLE, _WHOLE, *pattern.columns)
    return pl.DataFrame(rows, schema={f"c{at}": kind for at, kind in enumerate(types)}, orient="row")


class _Bid(msgspec.Struct):
    auction: int
    bidder: int
    price: int


class _Event(msgspec.Struct):
    dateTime: str  # noqa: N815
    bid: _Bid | None = None


def bids_in_order(folder: Path) -> dict[tuple[int, int], Bids]:
    """The bids of each auction and bidder, by time, then as they came."""
    read = msgspec.json.Decoder(_Event).decode
    found: dict[tuple[int, int], Bids] = {}
    for lines in read_folder(folder):
        for event in map(read, lines):
            if (bid := event.bid) is not None:
                time = datetime.fromisoformat(event.dateTime).replace(tzinfo=None)
                found.setdefault((bid.auction, bid.bidder), []).append(Bid(time, bid.price))
    for bids in found.values():
        bids.sort(key=lambda bid: bid.time)  # those of one time stay as they are
    return found
