"""Many rules over Nexmark's bids: patterns that differ in a constant, as we and as Flink say them; and stored queries of twenty shapes.

The first rules of many are the rules of few, so that what more of them cost is told by the time alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

FALLS = ("begun", "ended", "lowest")
"""What a pattern tells, behind its name."""
SHAPES = 20

_FIRST_ID = 1_000  # of auctions and of people
_LEAST, _STEP = 30_000_000, 500_000
_FLINK = """SELECT auction, bidder, '{name}' AS `pattern`, begun, ended, lowest
FROM bid MATCH_RECOGNIZE (
  PARTITION BY auction, bidder
  ORDER BY `dateTime`
  MEASURES high.`dateTime` AS begun, up.`dateTime` AS ended, LAST(down.price) AS lowest
  ONE ROW PER MATCH
  AFTER MATCH SKIP PAST LAST ROW
  PATTERN (high down+ up) WITHIN INTERVAL '5' SECOND
  DEFINE
    high AS high.price > {above},
    down AS (LAST(down.price, 1) IS NULL AND down.price < high.price) OR down.price < LAST(down.price, 1),
    up AS up.price > LAST(down.price)
)"""


def thresholds(count: int) -> dict[str, int]:
    """The names of patterns, each with the price above which it begins: that is one of eleven bids at first, at last one of sixty."""
    return {f"fall_{number}": _LEAST + _STEP * number for number in range(count)}


def patterns(count: int) -> dict[str, dict[str, Any]]:
    """A high bid, one or more ever lower ones, then a higher one, within 5 seconds: as ``match_any`` takes them."""
    define = {"down": "price < PREV(price)", "up": "price > PREV(price)"}
    measures = dict(zip(FALLS, ("high.dateTime", "up.dateTime", "LAST(down.price)"), strict=True))
    return {
        name: {
            "pattern": "high down+ up",
            "define": {"high": f"price > {above}", **define},
            "measures": measures,
            "within": "5 seconds",
        }
        for name, above in thresholds(count).items()
    }


def for_flink(count: int) -> str:
    """The same patterns in Flink's SQL."""
    return "\nUNION ALL\n".join(_FLINK.format(name=name, above=above) for name, above in thresholds(count).items())


def stored_queries(count: int, events: int) -> list[str]:
    """Conditions on a bid, twenty shapes in turn; their constants are of the auctions, people and prices of so many events."""
    return [_QUERIES[number % SHAPES](_Constants(number, events)) for number in range(count)]


class _Constants:
    """What one query asks for. It is none of the few auctions and bidders that have most of the bids."""

    def __init__(self, number: int, events: int) -> None:
        self._chance = Random(number)  # noqa: S311
        self._rounds = max(4, events // 50)

    def auction(self) -> int:
        """The id of one."""
        return self._beside_the_hot(3 * self._rounds, 0)

    def bidder(self) -> int:
        """The id of one."""
        return self._beside_the_hot(self._rounds, 1)

    def channel(self) -> str:
        """The name of one."""
        return f"channel-{self._chance.randrange(10_000)}"

    def price(self) -> int:
        """A high price; one bid of six has a higher one."""
        return self._chance.randrange(10_000_000, 20_000_000)

    def _beside_the_hot(self, below: int, hot: int) -> int:
        number = self._chance.randrange(below)
        return _FIRST_ID + number + (number % 100 == hot)


_QUERIES: Sequence[Callable[[_Constants], str]] = (
    lambda c: f"auction = {c.auction()}",
    lambda c: f"bidder = {c.bidder()}",
    lambda c: f"channel = '{c.channel()}'",
    lambda c: f"auction = {c.auction()} AND bidder = {c.bidder()}",
    lambda c: f"auction = {c.auction()} AND channel = '{c.channel()}'",
    lambda c: f"bidder = {c.bidder()} AND channel = '{c.channel()}'",
    lambda c: f"auction = {c.auction()} AND price > {c.price()}",
    lambda c: f"bidder = {c.bidder()} AND price > {c.price()}",
    lambda c: f"channel = '{c.channel()}' AND price > {c.price()}",
    lambda c: f"auction = {c.auction()} AND bidder = {c.bidder()} AND price > {c.price()}",
    lambda c: f"auction = {c.auction()} AND price BETWEEN 1000 AND {c.price()}",
    lambda c: f"auction = {c.auction()} AND channel <> 'Google'",
    lambda c: f"bidder = {c.bidder()} AND channel <> '{c.channel()}' AND price > {c.price()}",
    lambda c: f"auction = {c.auction()} AND channel LIKE 'channel-1%'",
    lambda c: f"bidder = {c.bidder()} AND NOT auction = {c.auction()}",
    lambda c: f"contains_words(channel, 'channel {c.channel()[8:]}')",
    lambda c: f"contains_words(channel, '{c.channel()[8:]}') AND price > {c.price()}",
    lambda c: f"contains_words(channel, '{c.channel()[8:]}') AND auction = {c.auction()}",
    lambda c: f"price BETWEEN {(low := c.price())} AND {low + 1_000}",
    lambda c: f"price = {c.price()}",
)
