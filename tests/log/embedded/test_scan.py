"""Bulk reading of the embedded log: columns say what rows say, or nothing."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millstream.decode.json_lines import Joined
from millstream.errors import BadEvent, OffsetOutOfRange
from millstream.event import Event
from millstream.log.contract import TopicSettings
from millstream.log.embedded.engine import SqliteLog
from millstream.log.embedded.scan import Part, records_within, scan_rows, scan_values
from millstream.log.lag import stored

RESERVED = b"reserved"
values = st.binary(max_size=6) | st.sampled_from([b"{}", b'{"n": 1}', b"\0", b"a\0b", b"\n", b"\xff", b""])
keys = st.none() | st.sampled_from([b"k", RESERVED, RESERVED + b".1", RESERVED[:-1], b"x" + RESERVED])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(st.tuples(keys, values), min_size=1, max_size=12),
    empty=st.sets(st.integers(0, 11), max_size=4),
    start=st.integers(0, 11),
    limit=st.integers(1, 12),
)
@example(events=[(b"k", b"a"), (b"k", b"\n"), (b"k", b"b")], empty=set(), start=0, limit=12)
@example(events=[(b"k", b"a"), (RESERVED, b"b"), (b"k", b"c")], empty=set(), start=0, limit=12)
@example(events=[(b"k", b"a"), (b"k", b"b")], empty={1}, start=0, limit=12)
@example(
    events=[(b"k", b""), (b"k", b"\n")], empty={0}, start=0, limit=12
)  # as many newlines as there would be between
def test_columns_are_those_of_the_rows_or_none_at_all(
    tmp_path: Path, events: list[tuple[bytes | None, bytes]], empty: set[int], start: int, limit: int
) -> None:
    (tmp_path / "log.db").unlink(missing_ok=True)
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("t", 1)
        log.append("t", [Event(None if at in empty else value, key=key) for at, (key, value) in enumerate(events)])
        part = Part("t", 0, min(start, len(events)), len(events))
        rows = scan_rows(log, part, limit)
        found = scan_values(log, part, limit, RESERVED)
        rows = list(takewhile(lambda row: not (row[3] or b"").startswith(RESERVED), rows))
        assert (found is not None) == any(row[4] is not None for row in rows)
        if found is not None:
            assert found.offsets.tolist() == [row[0] for row in rows]
            assert found.appended.tolist() == [row[2] for row in rows]
            assert list(Joined(found.joined, found.lengths)) == [row[4] for row in rows]
            assert found.keys == [row[3] for row in rows if row[4] is None]


def test_a_compacted_topic_has_gaps(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("t", 1, TopicSettings(cleanup="compact"))
        log.append("t", [Event(b"%d" % n, key=b"%d" % (n % 3)) for n in (0, 1, 0, 2, 1, 0, 3)])
        assert stored(log, log.topic("t")) == 7
        assert log.maintain("t").compacted
        part = Part("t", 0, 0, 7)
        rows, found = scan_rows(log, part, 9), scan_values(log, part, 9, RESERVED)
        assert found is not None
        assert len(rows) < rows[-1][0] - rows[0][0] + 1, "there are gaps"
        assert stored(log, log.topic("t")) == len(rows)
        assert found.offsets.tolist() == [row[0] for row in rows]
        for limit in range(1, 5):  # as many as there may be, however wide the gaps
            rows, found = scan_rows(log, part, limit), scan_values(log, part, limit, RESERVED)
            assert found is not None
            assert found.offsets.tolist() == [row[0] for row in rows]
            assert list(Joined(found.joined, found.lengths)) == [row[4] for row in rows]


def test_a_range_that_is_gone_is_refused(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("t", 1)
        log.append("t", [Event(b"1")])
        for scan in (lambda part: scan_rows(log, part, 5), lambda part: scan_values(log, part, 5, RESERVED)):
            with pytest.raises(OffsetOutOfRange):
                scan(Part("t", 0, 7, 9))


sizes = st.lists(st.integers(0, 90), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=sizes, limit=st.integers(1, 12), most=st.integers(30, 200))  # SQLite's least
@example(sizes=[20, 20, 20], limit=12, most=30)
@example(sizes=[90, 1, 1], limit=12, most=30)
def test_a_part_is_read_in_pieces_of_so_many_bytes(tmp_path: Path, sizes: list[int], limit: int, most: int) -> None:
    (tmp_path / "log.db").unlink(missing_ok=True)
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("t", 1)
        log.append("t", [Event(b"x" * size, key=b"k") for size in sizes])
        read: list[int] = []
        while len(read) < len(sizes):
            part = Part("t", 0, len(read), len(sizes))
            found = scan_values(log, part, limit, RESERVED, most)
            assert found is not None
            assert len(found.offsets) == 1 or len(found.joined) <= most
            read += found.lengths.tolist()
        assert read == sizes
        read = []
        while len(read) < len(sizes):
            rows = scan_rows(log, Part("t", 0, len(read), len(sizes)), limit, most)
            assert len(rows) == 1 or sum(len(row[3] or b"") + len(row[4] or b"") for row in rows) <= most
            read += [len(row[4] or b"") for row in rows]
        assert read == sizes


def test_so_many_bytes_are_so_many_records_wherever_the_large_ones_are(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("t", 1)
        log.create_topic("u", 1)
        assert records_within(log, [Part("t", 0, 0, 0), Part("u", 0, 0, 0)], 100) == 1
        log.append("t", [Event(b"x" * 1000) for _ in range(64)])
        log.append("u", [Event(b"x") for _ in range(6400)])
        parts = [Part("t", 0, 0, 64), Part("u", 0, 0, 6400)]
        assert records_within(log, parts, 100_000) == 6464
        assert records_within(log, parts, 11_000) == 1010, "ten large ones, and the small ones beside them"
        assert records_within(log, parts, 1) == 1
        log.append("t", [Event(b"x") for _ in range(6400)])
        assert records_within(log, [Part("t", 0, 0, 6464)], 5_000) <= 10
        assert records_within(log, [Part("t", 0, 64, 6464)], 5_000) == 5_000


def test_a_value_beyond_what_sqlite_holds_is_named(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.create_topic("t", 1)
        log.append("t", [Event(b"x" * 1000)])
        log.store.db.limit(apsw.SQLITE_LIMIT_LENGTH, 500)
        with pytest.raises(BadEvent, match="more than SQLite can hold"):
            scan_rows(log, Part("t", 0, 0, 1), 1)
