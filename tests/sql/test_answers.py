"""What queries answer: what DuckDB answers over the same rows, and for what it has no words, what was worked out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import duckdb
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from millstream import Pipeline
from millstream.errors import PlanError
from millstream.relation.relation import Relation
from millstream.sql.query import compile_query
from millstream.testing import Trial
from tests.sql.random_query import COUNT, Author

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
Begin = Callable[..., Trial]
Rows = list[tuple[Any, ...]]


def shop() -> tuple[Pipeline, dict[str, Relation]]:
    pipeline = Pipeline("shop")
    e = pipeline.stream("e", "n long, k long, v long, at timestamp", time="at")
    return pipeline, {"e": e, "t": pipeline.table("t", "id long, a long", key="id")}


def ours(sql: str, e: Rows, t: Rows, cut: int) -> Counter[tuple[Any, ...]]:
    """The answer of a view that was fed in two batches; of the table's rows the first batch has older ones."""
    pipeline, relations = shop()
    relation = compile_query(sql, relations)
    pipeline.view("answer", relation, unbounded=True)
    at = NOON.isoformat()
    with Trial(pipeline) as trial:
        for some, more in ((e[:cut], 1), (e[cut:], 0)):
            with trial.batch():
                trial.feed("t", [{"id": key, "a": None if a is None else a + more} for key, a in t])
                trial.feed("e", [{"n": n, "k": k, "v": v, "at": at} for n, k, v in some])
        found = trial.rows("answer")
    return Counter(tuple(row[name] for name in relation.columns) for row in found)


def theirs(sql: str, e: Rows, t: Rows) -> Counter[tuple[Any, ...]]:
    """DuckDB's answer; over nothing, the group of everything has no row with us."""
    with duckdb.connect() as db:
        db.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
        db.execute("CREATE TABLE e (n BIGINT, k BIGINT, v BIGINT); CREATE TABLE t (id BIGINT, a BIGINT)")
        for name, rows in (("e", e), ("t", t)):
            if rows:
                db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        found = db.execute(sql).fetchall()
    return Counter(row for row in found if not (COUNT in sql and row[0] == 0))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_a_random_query_answers_what_duckdb_answers(seed: int) -> None:
    random = Random(seed)
    small = [None, 0, 1, 1, 2, 3]
    e = [(n, random.choice(small), random.choice(small)) for n in range(random.randint(4, 14))]
    t = [(key, random.choice(small)) for key in random.sample(range(5), random.randint(3, 5))]
    sql = Author(seed).query()
    expected = theirs(sql, e, t)
    event("some rows" if expected else "no rows")
    assert ours(sql, e, t, random.randint(0, len(e))) == expected, sql


FULL: dict[str, tuple[str, set[tuple[Any, ...]]]] = {
    "more columns than the key": (
        "SELECT id, a FROM t FULL JOIN (SELECT n AS id, max(v) AS a FROM e GROUP BY n) q USING (id, a)",
        {(1, 1), (1, 2), (2, None)},
    ),
    "a null group on both sides": (
        """SELECT a, x.c, y.d FROM (SELECT a, count(*) AS c FROM t GROUP BY a) x
           FULL JOIN (SELECT k AS a, count(*) AS d FROM e GROUP BY k) y USING (a)""",
        {(2, 1, None), (None, 1, None), (None, None, 1)},
    ),
    "a null group on both sides, told apart": (
        """SELECT x.a, x.c, y.k, y.d FROM (SELECT a, count(*) AS c FROM t GROUP BY a) x
           FULL JOIN (SELECT k, count(*) AS d FROM e GROUP BY k) y ON x.a = y.k""",
        {(2, 1, None, None), (None, 1, None, None), (None, None, None, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("name", FULL)
def test_rows_of_a_full_join_without_a_partner_are_not_one(name: str, together: bool) -> None:
    sql, expected = FULL[name]
    found = ours(sql, [(1, None, 1)], [(1, 2), (2, None)], 1 if together else 0)
    assert found == Counter(expected)


def bids() -> tuple[Pipeline, dict[str, Relation]]:
    pipeline = Pipeline("bids")
    columns = "auction long, bidder long, price long, at timestamp"
    relations = {
        "bid": pipeline.stream("bid", columns, time="at"),
        "sale": pipeline.stream("sale", "id long, seller long, at timestamp", time="at"),
        "users": pipeline.table("users", "id long, name string", key="id"),
    }
    return pipeline, relations


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def bid(auction: int, price: int, seconds: float, bidder: int = 1) -> dict[str, Any]:
    return {"auction": auction, "bidder": bidder, "price": price, "at": at(seconds).isoformat()}


def answer(trial: Begin, sql: str, feed: Callable[[Trial], None], **options: Any) -> list[tuple[Any, ...]]:
    """What a view of a query holds when all time has ended, sorted."""
    pipeline, relations = bids()
    relation = compile_query(sql, relations)
    pipeline.view("answer", relation, **options)
    begun = trial(pipeline)
    feed(begun)
    begun.close()
    return sorted(tuple(row[name] for name in relation.columns) for row in begun.rows("answer"))


def some_bids(trial: Trial) -> None:
    trial.feed("bid", [bid(1, 10, 0), bid(2, 20, 1), bid(2, 30, 3), bid(1, 40, 11), bid(1, 50, 12)])


def test_windows_that_tumble(trial: Begin) -> None:
    sql = """
        SELECT auction, window_start, count(*) AS n, sum(price) / count(*) AS mean
        FROM tumble(TABLE bid, at, INTERVAL 10 SECONDS) GROUP BY auction, window_start, window_end
    """
    found = answer(trial, sql, some_bids, emit="final")
    assert found == [(1, at(0), 1, 10.0), (1, at(10), 2, 45.0), (2, at(0), 2, 25.0)]


def test_the_best_of_each_window_with_all_that_tie(trial: Begin) -> None:
    sql = """
        SELECT auction, n, window_start FROM (
            SELECT auction, count(*) AS n, window_start,
                   rank() OVER (PARTITION BY window_start, window_end ORDER BY count(*) DESC) AS place
            FROM hop(TABLE bid, at, INTERVAL 5 SECONDS, INTERVAL 10 SECONDS)
            GROUP BY auction, window_start, window_end)
        WHERE place = 1
    """
    found = answer(trial, sql, some_bids, emit="final")
    assert found == [(1, 2, at(5)), (1, 2, at(10)), (2, 2, at(-5)), (2, 2, at(0))]


HIGHEST = """
    SELECT auction, price FROM tumble(TABLE bid, at, INTERVAL 10 SECONDS)
    QUALIFY {call} OVER (PARTITION BY window_start, window_end ORDER BY price DESC) {bound}
"""
JOINED = """
    SELECT a.price, b.price AS other FROM {one} a {how} JOIN {other} b
    ON a.window_start = b.window_start AND a.auction = b.auction AND a.bidder = b.bidder
"""
IN_WINDOWS = {
    "the highest": HIGHEST.format(call="rank()", bound="= 1"),
    "the two highest": HIGHEST.format(call="dense_rank()", bound="<= 2"),
    "numbers": """
        SELECT auction, price, rank() OVER (PARTITION BY window_start ORDER BY price) AS r
        FROM tumble(TABLE bid, at, INTERVAL 10 SECONDS)
    """,
    "counted later": """
        SELECT window_end, count(*) AS n, max(price) AS most
        FROM (SELECT price + 1 AS price, window_end FROM tumble(TABLE bid, at, INTERVAL 10 SECONDS) WHERE price > 3)
        GROUP BY window_end
    """,
    "joined": JOINED.format(
        one="tumble(TABLE bid, at, INTERVAL 10 SECONDS)",
        how="LEFT",
        other="(SELECT * FROM tumble(TABLE bid, at, INTERVAL 10 SECONDS) WHERE price < 5)",
    ),
}
"""Queries over rows with their windows. DuckDB reads them over a table that has the columns of the windows."""


@pytest.mark.parametrize("emit", ["changes", "final"])
@pytest.mark.parametrize("name", IN_WINDOWS)
@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32))
def test_rows_with_their_windows_answer_what_duckdb_answers(name: str, emit: Any, seed: int) -> None:
    random = Random(seed)
    times = sorted(random.choices(range(40), k=30))
    made = [(random.randrange(3), random.randrange(2), random.randrange(8), second) for second in times]
    pipeline, relations = bids()
    relation = compile_query(IN_WINDOWS[name], relations)
    pipeline.view("answer", relation, emit=emit)
    rows = [bid(auction, price, second, bidder) for auction, bidder, price, second in made]
    with Trial(pipeline) as trial:
        cuts = [0, *sorted(random.choices(range(30), k=3)), 30]
        for low, high in pairwise(cuts):
            trial.feed("bid", rows[low:high])
            if emit == "final":
                over = [row for row in made if row[3] < (made[high - 1][3] if high else 0) // 10 * 10]
                assert found_in(trial, relation) == in_windows(name, over), "before the end"
        trial.close()
        assert found_in(trial, relation) == in_windows(name, made)


def found_in(trial: Trial, relation: Relation) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[column] for column in relation.columns) for row in trial.rows("answer"))


def in_windows(name: str, rows: Rows) -> Counter[tuple[Any, ...]]:
    """DuckDB's answer, over a table of rows with their windows."""
    sql = IN_WINDOWS[name].replace("tumble(TABLE bid, at, INTERVAL 10 SECONDS)", "e")
    with duckdb.connect() as db:
        db.execute("SET timezone = 'UTC'")
        db.execute(
            "CREATE TABLE e (auction BIGINT, bidder BIGINT, price BIGINT, window_start TIMESTAMPTZ, window_end TIMESTAMPTZ)"
        )
        for auction, bidder, price, second in rows:
            start = at(second // 10 * 10)
            db.execute(
                "INSERT INTO e VALUES (?, ?, ?, ?, ?)", [auction, bidder, price, start, start + timedelta(seconds=10)]
            )
        return Counter(db.execute(sql).fetchall())


def test_a_row_of_windows_that_overlap_is_in_each_of_them(trial: Begin) -> None:
    sql = """
        SELECT auction, price, window_start FROM hop(TABLE bid, at, INTERVAL 5 SECONDS, INTERVAL 10 SECONDS)
        QUALIFY row_number() OVER (PARTITION BY window_start ORDER BY price DESC) = 1
    """
    found = answer(trial, sql, some_bids, emit="final")
    assert found == [(1, 50, at(5)), (1, 50, at(10)), (2, 30, at(-5)), (2, 30, at(0))]


def test_sessions(trial: Begin) -> None:
    sql = """
        SELECT auction, count(*) AS n, window_end FROM session(TABLE bid PARTITION BY auction, at, INTERVAL 5 SECONDS)
        GROUP BY auction, window_start, window_end
    """
    assert answer(trial, sql, some_bids) == [(1, 1, at(5)), (1, 2, at(17)), (2, 2, at(8))]


def test_windows_without_an_aggregate_are_there_once(trial: Begin) -> None:
    sql = "SELECT auction, window.start AS start FROM bid GROUP BY auction, window(at, '10 seconds')"
    assert answer(trial, sql, some_bids, emit="final") == [(1, at(0)), (1, at(10)), (2, at(0))]


def test_a_span_between_two_streams(trial: Begin) -> None:
    def feed(trial: Trial) -> None:
        trial.feed(
            "sale", [{"id": 1, "seller": 7, "at": at(0).isoformat()}, {"id": 2, "seller": 8, "at": at(2).isoformat()}]
        )
        some_bids(trial)

    sql = """
        SELECT s.seller, b.price, b.at FROM sale s
        LEFT JOIN bid b ON s.id = b.auction AND b.at >= s.at AND b.at < s.at + INTERVAL 11 SECONDS
    """
    assert answer(trial, sql, feed, emit="changes") == [(7, 10, at(0)), (8, 30, at(3))]


def test_a_table_as_of_the_time_of_an_event(trial: Begin) -> None:
    def feed(trial: Trial) -> None:
        trial.feed("users", [{"id": 1, "name": "Ann"}], at=at(0))
        trial.feed("users", [{"id": 1, "name": "Anne"}], at=at(10))
        some_bids(trial)

    sql = "SELECT b.price, u.name FROM bid b JOIN users FOR SYSTEM_TIME AS OF b.at AS u ON b.bidder = u.id WHERE price <> 20"
    assert answer(trial, sql, feed) == [(10, "Ann"), (30, "Ann"), (40, "Anne"), (50, "Anne")]


def test_the_time_of_one_side_after_a_join_is_found_under_its_name(trial: Begin) -> None:
    def feed(trial: Trial) -> None:
        trial.feed("sale", [{"id": 1, "seller": 7, "at": at(0).isoformat()}])
        some_bids(trial)

    sql = """
        SELECT s.at AS opened, b.at, b.at > s.at AS later FROM bid b, sale s
        WHERE b.auction = s.id AND s.at BETWEEN b.at - INTERVAL 11 SECONDS AND b.at
    """
    assert answer(trial, sql, feed) == [(at(0), at(0), False), (at(0), at(11), True)]


def some_repeats(trial: Trial) -> None:
    trial.feed("bid", [bid(1, 10, 0), bid(1, 11, 0.5, bidder=2), bid(1, 20, 4), bid(2, 30, 5)])
    trial.feed("bid", [bid(1, 40, 6), bid(2, 60, 30)])


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT auction, price FROM deduplicate(TABLE bid PARTITION BY auction, at, INTERVAL 5 SECONDS)",
            [(1, 10), (1, 40), (2, 30), (2, 60)],
        ),
        (
            "SELECT auction, price FROM deduplicate(TABLE bid PARTITION BY auction, bidder, DESCRIPTOR(at)) AS once",
            [(1, 10), (1, 11), (2, 30)],
        ),
        (
            """SELECT window_start, count(*) AS n FROM tumble(
                 TABLE deduplicate(TABLE bid PARTITION BY auction, at, INTERVAL 5 SECONDS), at, INTERVAL 10 SECONDS)
               GROUP BY window_start, window_end""",
            [(at(0), 3), (at(30), 1)],
        ),
        (
            """WITH once AS (SELECT b.auction, b.at FROM deduplicate(TABLE bid PARTITION BY auction, at, INTERVAL 9 SECONDS) b)
               SELECT auction, count(*) AS n, window_end FROM session(TABLE once PARTITION BY auction, at, INTERVAL 20 SECONDS)
               GROUP BY auction, window_start, window_end""",
            [(1, 1, at(20)), (2, 1, at(25)), (2, 1, at(50))],
        ),
        (
            """SELECT a.price, b.price AS other FROM deduplicate(TABLE bid PARTITION BY auction, at, INTERVAL 9 SECONDS) a
               JOIN bid b ON a.auction = b.auction AND b.at BETWEEN a.at + INTERVAL 1 SECOND AND a.at + INTERVAL 5 SECONDS""",
            [(10, 20)],
        ),
    ],
)
def test_a_stream_without_repeats_keeps_its_time(trial: Begin, sql: str, expected: Rows) -> None:
    assert answer(trial, sql, some_repeats, unbounded=True) == expected


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (
            "deduplicate(TABLE bid, at)",
            "expected the columns that tell repeats; found none",
            "SELECT DISTINCT takes all",
        ),
        ("deduplicate(TABLE bid PARTITION BY auction)", "expected a table and its time", "PARTITION BY id, at"),
        ("deduplicate(TABLE bid PARTITION BY auction, price)", "by price; expected at, the event time", ""),
        ("deduplicate(TABLE users PARTITION BY id, id)", "users has none here", "QUALIFY row_number()"),
        ("dedupe(TABLE bid, at)", "expected tumble, hop, session, slide or deduplicate", "deduplicate(TABLE"),
        (
            "tumble((SELECT * FROM bid QUALIFY row_number() OVER (PARTITION BY auction ORDER BY at) = 1), at, INTERVAL 1 DAY)",
            "of the first rows of bid",
            "deduplicate(TABLE … PARTITION BY id, at, INTERVAL 1 DAY) keeps the first",
        ),
    ],
)
def test_repeats_that_cannot_be_told_are_refused_at_their_place(call: str, message: str, hint: str) -> None:
    pipeline, _ = bids()
    with pytest.raises(PlanError) as caught:
        pipeline.view("v", sql=f"SELECT * FROM {call}")
    assert message in caught.value.message
    assert hint in caught.value.hint
