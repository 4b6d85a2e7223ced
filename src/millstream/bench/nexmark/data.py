"""Events between generator, files and logs: a folder of ``*.jsonl`` in the order of names is how tools exchange them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import polars as pl

from millstream.bench.nexmark.generator import columns
from millstream.event import Event
from millstream.log import open_log

TOPIC = "nexmark"
PARTITIONS = 4
_AT_ONCE = 50_000
_PER_FILE = 4  # blocks of the generator


def write_folder(folder: Path, count: int, seed: int = 0) -> Path:
    """Make the folder anew, with the first ``count`` events in it; give it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, column in enumerate(columns(count, seed)):
        with (folder / f"events-{number // _PER_FILE:05}.jsonl").open("ab") as file:
            pl.DataFrame({"value": column}).write_csv(file, include_header=False, quote_style="never")
    return folder


def files_of(folder: Path) -> list[Path]:
    """The files of a folder, in their order; at least one."""
    found = sorted(folder.glob("*.jsonl"))
    if not found:
        raise FileNotFoundError(f"no *.jsonl in {folder}")
    return found


def read_folder(folder: Path) -> Iterator[list[bytes]]:
    """The documents in all files of a folder, some at a time."""
    for path in files_of(folder):
        with path.open("rb") as file:
            while lines := file.readlines(_AT_ONCE * 350):
                yield [line.rstrip() for line in lines if not line.isspace()]


class _Bid(msgspec.Struct):
    auction: int | None = None


class _Bidding(msgspec.Struct):
    bid: _Bid | None = None


_bidding = msgspec.json.Decoder(_Bidding).decode


def auction_of(value: bytes) -> int | None:
    """The auction of a bid; of other events None."""
    bid = _bidding(value).bid
    return None if bid is None else bid.auction


def keyed(values: Iterable[bytes]) -> list[Event]:
    """Documents as events, bids with their auction as the key: those of an auction stay in their order."""
    return [Event(value, None if (auction := auction_of(value)) is None else b"%d" % auction) for value in values]


def fill(
    log: str,
    batches: Iterable[list[bytes]],
    *,
    topic: str = TOPIC,
    partitions: int = PARTITIONS,
    by_auction: bool = False,
) -> int:
    """Make the topic, append all documents to its partitions, in turn or bids by their auction, and give how many there were.

    The embedded log is made where there is none.
    """
    count = 0
    with open_log(log, create=log.startswith("sqlite:")) as opened:
        opened.create_topic(topic, partitions)
        for number, values in enumerate(batches):
            made = keyed(values) if by_auction else list(map(Event, values))
            opened.append(topic, made, producer="nexmark", sequence=number)
            count += len(values)
    return count
