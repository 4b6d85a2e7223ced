"""Heartbeats: when one of the ledger comes, and which records of a topic are one."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.log.heartbeat import PREFIX, Beat, Heartbeat, read_heartbeat

TIMES = st.none() | st.integers(-(10**17), 10**17)
NAMES = st.from_regex("[A-Za-z0-9_-]{1,63}(~next)?", fullmatch=True)
KEYS = st.builds(
    lambda begin, end: begin + end, st.sampled_from([PREFIX, PREFIX[:-1], PREFIX[:-1] + b"s-"]), st.binary()
) | (st.integers(0, 99).map(lambda number: PREFIX + b"%d" % number))
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "time": TIMES | st.booleans() | st.floats() | st.text(),
        "pipeline": st.none() | NAMES | st.text() | st.integers(),
        "more": st.none(),
    },
)
VALUES = (
    st.none() | st.binary() | DOCUMENTS.map(lambda said: json.dumps(said, separators=(",", ":")).encode())
) | DOCUMENTS.map(lambda said: json.dumps(said).encode())


@given(time=TIMES, pipeline=NAMES, number=st.integers(0, 99))
def test_what_earlier_versions_wrote_is_read(time: int | None, pipeline: str, number: int) -> None:
    said = json.dumps({"time": time, "pipeline": pipeline}, separators=(",", ":")).encode()
    assert read_heartbeat(PREFIX + b"%d" % number, said) == Heartbeat(time, pipeline)


def test_a_beat_comes_after_all_that_was_read_before_it_and_at_the_latest_with_the_next_record() -> None:
    beat = Beat("a", 0, 5, 17, appended=9, ends={"a": {"0": 5}, "b": {"0": 3}, "gone": {"0": 9}})
    assert beat.reached({"a": {"0": 5}, "b": {"0": 3}})
    assert not beat.reached({"a": {"0": 5}, "b": {"0": 2}})
    assert beat.reached({"a": {"0": 6}, "b": {"0": 2}})
    assert not beat.reached({"a": {"0": 4}, "b": {"0": 3}})
    assert not beat.reached({"b": {"0": 3}})


def test_a_beat_that_no_batch_has_had_waits_for_its_ends_and_may_come_later() -> None:
    beat = Beat("a", 0, 5, 17)
    assert beat.reached({"a": {"0": 6}, "b": {"0": 2}})
    assert not beat.reached({"a": {"0": 4}})
    closing = beat._replace(ends={"a": {"0": 5}, "b": {"0": 3}})
    assert closing.reached({"a": {"0": 6}, "b": {"0": 3}})
    assert not closing.reached({"a": {"0": 6}, "b": {"0": 2}})


def test_those_of_earlier_versions_are_for_everybody_but_the_end_is_not() -> None:
    assert read_heartbeat(PREFIX + b"0", b'{"time":17,"pipeline":null}') == Heartbeat(17, None)
    assert read_heartbeat(PREFIX + b"0", b'{"time":null,"pipeline":null}') is None


@given(key=KEYS, value=VALUES)
def test_what_only_begins_like_one_is_none(key: bytes, value: bytes | None) -> None:
    assert (read_heartbeat(key, value) is not None) == _is_one(key, value)


def _is_one(key: bytes, value: bytes | None) -> bool:
    """The same, said in another way."""
    number = key.removeprefix(b"millstream.heartbeat.")
    if value is None or number == key or not (number.isdigit() and number.isascii()):
        return False
    try:
        said: Any = json.loads(value)
    except ValueError:
        return False
    if not isinstance(said, dict) or list(said) != ["time", "pipeline"] or b" " in value:
        return False
    time, pipeline = said.values()
    named = isinstance(pipeline, str) and re.fullmatch("[A-Za-z0-9_~-]+", pipeline, re.ASCII) is not None
    return (time is None and named) or (type(time) is int and (pipeline is None or named))
