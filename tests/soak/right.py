"""What a soaked pipeline must have come to: its views, counts and sinks, against a plain recomputation from the log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import redis

from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.store import open_reader
from tests.runtime.random_shop import Shop, expected, rows_of, stored
from tests.soak.runner import Wrong


def compare(shop: Shop, pipeline: Pipeline, cache: str | None) -> str:
    """Compare everything with the recomputation; say what was compared."""
    with open_log(pipeline.log, create=False) as log:
        views, fates = expected(shop, pipeline, log)
        sent = {"the topic of changes": _last_sent(log)}
    if cache is not None:
        sent["Redis"] = _cached(cache)
    found = stored(pipeline)
    for name, wanted in views.items():
        if found.get(name, Counter()) != wanted:
            missing, extra = wanted - found.get(name, Counter()), found.get(name, Counter()) - wanted
            raise Wrong(f"view {name}: missing {_some(missing)}; not expected {_some(extra)}")
    with open_reader(pipeline.to) as store:
        counted = store.admission("shop").to_pylist()
    for row in counted:
        fate = fates.get((row["topic"], row["partition"]), Counter())
        for verdict in ("admitted", "late", "duplicate", "future", "malformed"):
            if row[verdict] != fate[verdict]:
                place = f"{row['topic']}/{row['partition']}"
                raise Wrong(f"{place}: {row[verdict]} records counted as {verdict}, {fate[verdict]} are")
    kept = rows_of(pipeline.views["by_user"])
    for sink, rows in sent.items():
        if rows != kept:
            raise Wrong(f"{sink} has {_some(rows - kept)} that the view has not, and lacks {_some(kept - rows)}")
    records = sum(row["records"] for row in counted)
    return f"{records:,} records, {len(views)} views, {' and '.join(sent)}"


def _last_sent(log: Any) -> Counter[Any]:
    """What the topic of changes holds in the end: the last row of each key, unless it was deleted."""
    last: dict[bytes | None, Any] = {}
    for partition, bound in log.bounds("out").items():
        for record in log.read("out", partition, bound.start, bound.end):
            last[record.key] = None if record.value is None else json.loads(record.value)
    return _rows(row for row in last.values() if row is not None)


def _cached(cache: str) -> Counter[Any]:
    """What Redis holds of the view."""
    with redis.Redis.from_url(cache) as client:
        found: Any = client.hvals("millstream:{by_user}")
    return _rows(json.loads(row) for row in found)


def _rows(documents: Iterable[Any]) -> Counter[Any]:
    return Counter((row["user"], row["ten"], row["total"]) for row in documents)


def _some(rows: Counter[Any]) -> str:
    shown = ", ".join(f"{row!r} × {count}" for row, count in list(rows.items())[:5])
    return f"{sum(rows.values())} rows ({shown}{', …' if len(rows) > 5 else ''})" if rows else "none"
