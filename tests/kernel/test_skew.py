"""Hot keys: what is allowed takes no more memory than is promised, and what is refused takes next to none.

Memory is measured in a process of its own, from when the rows are there until they are worked on.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from millstream.errors import PipelineError
from millstream.kernel.arrow import from_bytes
from millstream.kernel.exchange import chunk
from millstream.kernel.exchange.send import send
from millstream.kernel.kernel import Side, State
from millstream.kernel.operators import join
from millstream.kernel.operators.kernel_of import kernel_of
from millstream.kernel.state import segments
from millstream.kernel.state.store import NEVER, Memory, Meta
from millstream.kernel.zset import WEIGHT
from millstream.plan import spec as specs
from millstream.plan.build import DRIVER, Chain, Port, ViewPlan, build_chain
from millstream.relation.nodes import Column, EventTime, Source
from millstream.relation.properties import natural_key
from millstream.relation.relation import Relation
from millstream.window import session, tumbling
from tests.kernel import oracle
from tests.kernel.local import STAMP, Local, Rec, types_by_name

SECOND = 1_000_000
TYPES: dict[str, Any] = {
    "a": {"k": pl.Int64, "v": pl.String, "at": STAMP},
    "b": {"k": pl.Int64, "w": pl.String, "bt": STAMP},
}
MB = 1 << 20


def stream(name: str) -> Relation:
    value, at = ("v", "at") if name == "a" else ("w", "bt")
    columns = (Column("k", "long"), Column(value, "string"), Column(at, "timestamp"))
    return Relation(Source("stream", name, name, columns, time=EventTime(at, timedelta(hours=1))))


def chain_of(relation: Relation, buckets: int = 1) -> Chain:
    view = ViewPlan("hot", relation.node, "sqlite:x", "changes", natural_key(relation.node))
    return build_chain([view], buckets=buckets, to="sqlite:x")


def local_of(relation: Relation, buckets: int = 1) -> Local:
    chain = chain_of(relation, buckets)
    local = Local(chain, 1, types_by_name(chain, TYPES))
    local.limit = segments.LIMIT
    return local


def records(local: Local, name: str, count: int, key: Callable[[int], int] = lambda i: 1, width: int = 1) -> list[Rec]:
    """Events of one stream, one microsecond apart."""
    feed = next(each.number for each in local.chain.feeds if each.source.name == name)
    value, at = ("v", "at") if name == "a" else ("w", "bt")
    return [Rec(feed, 0, i, SECOND, {"k": key(i), value: f"{i:0{width}d}", at: oracle.stamp(i)}) for i in range(count)]


class Measure:
    """How far the memory of this process grows beyond what it was."""

    def __init__(self) -> None:
        self.base = _most()

    @property
    def grown(self) -> int:
        """Bytes."""
        return _most() - self.base


def _most() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def alone(name: str) -> dict[str, Any]:
    """Run a function of this module in a process of its own; give what it gives."""
    code = f"import json; from tests.kernel import test_skew; print(json.dumps(test_skew.{name}()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def join_streams() -> dict[str, Any]:
    """One key with 10,000 events on both sides of a join of streams."""
    local = local_of(stream("a").join(stream("b"), on="k", within="1 minute"))
    return _refused(local, "a", "b")


def join_tables() -> dict[str, Any]:
    """The same of two tables: the distinct rows of the streams."""
    local = local_of(stream("a").distinct().join(stream("b").distinct(), on="k"))
    return _refused(local, "a", "b")


def _refused(local: Local, one: str, other: str) -> dict[str, Any]:
    local.batch(records(local, one, 10_000))
    later = records(local, other, 10_000)
    measure = Measure()
    try:
        local.batch(later)
    except PipelineError as error:
        return {"error": str(error), "grown": measure.grown}
    return {"error": "none", "grown": measure.grown}


@pytest.mark.parametrize("name", ["join_streams", "join_tables"])
def test_ten_thousand_rows_that_meet_ten_thousand_are_refused_in_little_memory(name: str) -> None:
    found = alone(name)
    assert "view hot: a join would make 100,000,000 pairs" in found["error"]
    assert "The key 1 has 10,000 rows with 10,000 partners each" in found["error"]
    assert found["grown"] < 100 * MB


def wide_pairs(rows: int = 1_150, partners: int = 1_000, width: int = 80) -> dict[str, Any]:
    """Pairs of wide rows, made and sent on."""
    left, right = (
        pl.DataFrame({"_k0": [1] * count, name: [f"{i:0{width}d}" for i in range(count)]})
        for count, name in ((rows, "a"), (partners, "b"))
    )
    sides = tuple(Side(NEVER, NEVER, frame.schema) for frame in (left, right))
    kernel = kernel_of(specs.TableJoin("inner", 1, ("a",), ("b",)))
    measure = Measure()
    made = kernel.step(State(Memory(), Meta(), NEVER, NEVER, left.schema, sides=sides), left, right)
    assert made is not None
    port = Port(DRIVER, 1, (("a", "a"), ("b", "b")))
    sizes = [len(each.data) for each in send(made, port)]
    return {"pairs": made.height, "most": max(sizes), "sent": sum(sizes), "grown": measure.grown}


def test_pairs_within_the_limit_take_no_more_than_three_times_its_memory() -> None:
    found = alone("wide_pairs")
    assert found["pairs"] == 1_150_000
    assert found["sent"] > 180 * MB
    assert found["most"] < 2 * chunk.PIECE
    assert found["grown"] < 3 * join.MOST_BYTES


def test_pairs_of_wide_rows_are_refused_by_their_bytes() -> None:
    with pytest.raises(
        PipelineError, match=r"2,250,000 pairs of rows, .* The key 1 has 1,500 rows with 1,500 partners"
    ):
        wide_pairs(1_500, 1_500)
    assert wide_pairs(1_500, 1_500, 1)["pairs"] == 2_250_000


def test_rows_are_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "PIECE", 1_000)
    rows = pl.DataFrame({"k": range(500), WEIGHT: [1] * 500})
    for port in (Port(DRIVER, 1, (("k", "k"),)), Port(1, 1, (("k", "k"),), spread=("k",), buckets=4)):
        sent = list(send(rows, port))
        assert len(sent) >= 8
        assert sorted(value for each in sent for value in from_bytes(each.data)["k"]) == list(range(500))


def long_session() -> dict[str, Any]:
    """One session of a million events."""
    measures = (
        specs.Measure("n", "count", ()),
        specs.Measure("total", "sum", ("i",)),
        specs.Measure("most", "max", ("i",)),
    )
    kernel = kernel_of(specs.Session(("k",), measures, "at", 60 * SECOND))
    store, held, batch = Memory(), 0, 50_000
    schema = pl.Schema({"k": pl.Int64(), "at": STAMP, "i": pl.Int64()})
    measure = Measure()
    made = None
    for first in range(0, 1_000_000, batch):
        numbers = pl.int_range(first, first + batch, eager=True).alias("i")
        rows = pl.DataFrame({"i": numbers}).select(
            pl.lit(1, pl.Int64).alias("k"), (pl.col("i") * 1000).cast(STAMP).alias("at"), "i"
        )
        meta = Meta.read(store)
        state = State(store, meta, NEVER, NEVER, schema)
        made = kernel.step(state, rows)
        meta.write(store)
        held = sum(table.rows for table in state.tables.values())
    assert made is not None
    (last,) = made.filter(pl.col(WEIGHT) > 0).rows(named=True)
    return {"n": last["n"], "total": last["total"], "most": last["most"], "held": held, "grown": measure.grown}


def test_a_session_of_a_million_events_stays_one_row() -> None:
    found = alone("long_session")
    assert (found["n"], found["most"], found["total"]) == (1_000_000, 999_999, 999_999 * 500_000)
    assert found["held"] <= 2  # itself, and its greatest value
    assert found["grown"] < 200 * MB


def test_a_key_with_half_of_all_events_is_a_key_like_others() -> None:
    sessions = stream("a").group_by("k", session("at", "1 minute")).agg(n="count(*)", last="max_by(v, at)")
    per_second = stream("a").group_by("k", tumbling("at", "1 second")).agg(n="count(*)")
    expected = Counter({1: 10_000} | dict.fromkeys(range(100, 200), 100))
    for relation in (sessions, per_second):
        local = local_of(relation, buckets=4)
        events = records(local, "a", 20_000, lambda i: 1 if i % 2 else 100 + i // 2 % 100)
        for first in range(0, 20_000, 5_000):
            local.batch(events[first : first + 5_000])
        assert Counter({row[0]: row[3] for row in local.view("hot")}) == expected
        assert local.state_rows <= 3 * len(expected)


def test_a_key_with_more_bytes_than_one_may_keep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MOST_BYTES", 100_000)
    found = stream("a").top(1_000, "v", "k")
    many = local_of(found)
    many.batch(records(many, "a", 900, lambda i: i % 3, width=200))  # 60 KB a key
    with pytest.raises(PipelineError, match=r"view hot: k = 1, v = '0.* MB of rows to be kept for one key"):
        local_of(found).batch(records(many, "a", 900, lambda i: 1, width=200))
    joined = local_of(stream("a").join(stream("b"), on="k", within="1 minute"))
    with pytest.raises(PipelineError, match=r"view hot: key 0 = 7: 0 MB of rows to be kept for one key"):
        joined.batch(records(joined, "a", 900, lambda i: 7, width=200))
