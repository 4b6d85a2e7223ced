"""How old an answer is: from the append of an event to the commit of the views that have it in, while events come steadily."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from millstream.bench import Result
from millstream.bench.nexmark.data import fill, keyed
from millstream.bench.nexmark.generator import RATE, events
from millstream.bench.nexmark.queries import PATTERNS, fill_side, pipeline_of, topic_of
from millstream.bench.nexmark.run import Say
from millstream.bench.streams import delays
from millstream.event import Event
from millstream.spark.session import spark_session

QUERIES = ("q1", "q4", "q5", "q7")
"""Those of which one asks for delays: no state, a join, windows that hop, windows that tumble."""
_EVERY = 0.01
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def measure(queries: Sequence[str], seconds: float, seed: int, folder: Path, say: Say) -> Iterator[Result]:
    """Measure the delays of some queries at as many events a second as event time has; a run begins with a second's worth."""
    spark = spark_session("millstream-bench")
    per_append, before = int(RATE * _EVERY), int(RATE)
    for query in queries:
        say(f"{query}: {RATE:,.0f} events/s for {seconds:.0f} s")
        place = folder / f"delay-{query}"
        place.mkdir(parents=True)
        log = f"sqlite:{place / 'log.db'}"
        total = before + int(seconds * RATE)
        steady = chain.from_iterable(list(events(total, seed)))
        fill_side(log)
        topic, by_auction = topic_of(query), query in PATTERNS
        fill(log, [list(islice(steady, before))], topic=topic, by_auction=by_auction)
        made = keyed if by_auction else lambda values: list(map(Event, values))
        appends = (made(islice(steady, per_append)) for _ in range(int(seconds / _EVERY)))
        found = delays(spark, pipeline_of(query, log, place / "run", topic=topic), topic, appends, _EVERY)
        for name, share in _SHARES.items():
            yield Result(f"{query}.delay_{name}", found[int(share * (len(found) - 1))] * 1000, "ms")
