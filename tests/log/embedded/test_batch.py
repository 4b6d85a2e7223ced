"""What a batch may hold, and that changes made elsewhere are noticed by whoever appends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import BadEvent, ConfigError, SequenceTooOld, UnknownTopic
from millstream.event import Event
from millstream.log.contract import TopicSettings
from millstream.log.embedded.batch import dump_headers, load_headers, place
from millstream.log.embedded.engine import SqliteLog
from millstream.log.embedded.sequence import REMEMBERED
from millstream.log.partitioner import partition_of
from tests.contracts.log import read_all, values


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with SqliteLog(tmp_path / "log.db") as opened:
        yield opened


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.binary(max_size=20))).map(tuple))
def test_headers_come_back_as_they_were(headers: Any) -> None:
    assert load_headers(dump_headers(headers)) == headers


@given(st.lists(st.none() | st.binary(max_size=5)), st.integers(1, 9), st.integers(0, 2**40))
def test_keys_have_their_place_and_the_rest_takes_turns(keys: list[bytes | None], partitions: int, spread: int) -> None:
    for i, (key, found) in enumerate(zip(keys, place(keys, partitions, spread), strict=True)):
        assert found == ((spread + i) % partitions if key is None else partition_of(key, partitions))


def test_bytes_of_numpy_are_bytes(log: SqliteLog) -> None:
    log.create_topic("t")
    log.append("t", [Event(np.bytes_(b"value"), np.bytes_(b"key"))])
    (record,) = read_all(log, "t")
    assert (record.key, record.value) == (b"key", b"value")


@pytest.mark.parametrize(
    "wrong",
    [
        Event("x"),  # type: ignore[arg-type]
        Event(""),  # type: ignore[arg-type]
        Event(7),  # type: ignore[arg-type]
        Event(b"x", 7),  # type: ignore[arg-type]
        Event(b"x", time="2026-01-01"),  # type: ignore[arg-type]
        Event(b"x", time=1_767_225_600),  # type: ignore[arg-type]
        Event(b"x", headers=(("a",),)),  # type: ignore[arg-type]
        Event(b"x", headers=((b"a", b"b"),)),  # type: ignore[arg-type]
        Event(b"x", headers=(("\ud800", b"b"),)),
    ],
)
def test_what_cannot_be_stored_is_a_bad_event_and_nothing_else(log: SqliteLog, wrong: Event) -> None:
    log.create_topic("t")
    with pytest.raises(BadEvent):
        log.append("t", [Event(b"fine"), wrong])
    assert read_all(log, "t") == []


def test_the_size_of_a_record_is_key_value_and_headers(log: SqliteLog) -> None:
    headers = (("h", b"x" * 50),)
    size = 20 + len(dump_headers(headers))
    log.create_topic("t", 1, TopicSettings(max_record_bytes=size))
    log.append("t", [Event(b"v" * 10, b"k" * 10, datetime(2026, 1, 1, tzinfo=UTC), headers)])
    with pytest.raises(BadEvent, match=f"{size + 1} bytes, the topic takes up to {size}"):
        log.append("t", [Event(b"v" * 11, b"k" * 10, headers=headers)])


def test_settings_changed_through_another_handle_hold_at_once(log: SqliteLog, tmp_path: Path) -> None:
    log.create_topic("t", 1, TopicSettings(max_record_bytes=10))
    with pytest.raises(BadEvent):
        log.append("t", [Event(b"x" * 20)])
    with SqliteLog(tmp_path / "log.db") as other:
        other.alter_topic("t", settings=TopicSettings(max_record_bytes=30))
        log.append("t", [Event(b"x" * 20)])
        other.alter_topic("t", partitions=3, settings=TopicSettings(cleanup="compact"))
        with pytest.raises(BadEvent, match="no key"):
            log.append("t", [Event(b"x")])
        assert {*log.append("t", [Event(b"x", b"%d" % i) for i in range(30)]).partitions} == {0, 1, 2}
        other.alter_topic("t", settings=TopicSettings())
        log.append("t", [Event(b"x")])
        other.delete_topic("t")
        with pytest.raises(UnknownTopic):
            log.append("t", [Event(b"x")])
        other.create_topic("t", 2)
        assert log.append("t", [Event(b"x", b"k")]).offsets == [0]


# producers


def test_a_repeat_gets_its_first_acknowledgement_even_after_partitions_were_added(log: SqliteLog) -> None:
    log.create_topic("t", 2)
    batch = [Event(b"%d" % i, b"%d" % i if i % 3 else None) for i in range(20)]
    first = log.append("t", batch, producer="p", sequence=5)
    log.append("t", batch, producer="other", sequence=5)
    log.alter_topic("t", partitions=5)
    assert log.append("t", batch, producer="p", sequence=5) == first._replace(duplicate=True)


def test_a_repeat_that_is_another_batch_is_refused(log: SqliteLog) -> None:
    log.create_topic("t", 4)
    log.append("t", [Event(b"x", b"a")], producer="p", sequence=0)
    with pytest.raises(BadEvent, match="with 2 events; the first time it had 1"):
        log.append("t", [Event(b"x", b"a")] * 2, producer="p", sequence=0)
    elsewhere = next(b"%d" % i for i in range(99) if partition_of(b"%d" % i, 4) != partition_of(b"a", 4))
    with pytest.raises(BadEvent, match="with other keys"):
        log.append("t", [Event(b"x", elsewhere)], producer="p", sequence=0)
    assert len(read_all(log, "t")) == 1


def test_a_number_that_was_passed_over_or_forgotten_is_too_old(log: SqliteLog) -> None:
    log.create_topic("t")
    for sequence in (0, 10, 11, 10 + REMEMBERED):
        log.append("t", [Event(b"%d" % sequence)], producer="p", sequence=sequence)
    assert log.append("t", [Event(b"11")], producer="p", sequence=11).duplicate  # just not forgotten
    for sequence in (0, 5, 10):
        with pytest.raises(SequenceTooOld, match=f"sends sequence {sequence} to topic t after {10 + REMEMBERED}"):
            log.append("t", [Event(b"again")], producer="p", sequence=sequence)
    assert values(read_all(log, "t")) == ["0", "10", "11", str(10 + REMEMBERED)]


def test_producer_and_sequence_go_together(log: SqliteLog) -> None:
    log.create_topic("t")
    with pytest.raises(ConfigError, match="go together"):
        log.append("t", [Event(b"x")], producer="p")
    with pytest.raises(ConfigError, match="go together"):
        log.append("t", [Event(b"x")], sequence=1)
