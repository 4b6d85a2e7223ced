"""The form of a heartbeat: what is written is read, and nothing else is one."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.log.heartbeat import PREFIX, Heartbeat, read_heartbeat, write_heartbeat
from millstream.log.partitioner import partition_of

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


@given(time=TIMES, pipeline=NAMES, partition=st.integers(0, 6))
def test_what_is_written_is_read(time: int | None, pipeline: str, partition: int) -> None:
    event = write_heartbeat(time, pipeline, partition, 7)
    assert read_heartbeat(event.key, event.value) == Heartbeat(time, pipeline)
    assert event.key is not None
    assert partition_of(event.key, 7) == partition


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
