"""The decoder of messages: what was encoded is read again, and bytes that are no message are refused."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.capture.postgres.pgoutput import (
    EPOCH,
    UNCHANGED,
    Attribute,
    Begin,
    Commit,
    Message,
    Note,
    Origin,
    Relation,
    Row,
    StreamAbort,
    StreamStart,
    StreamStop,
    Truncate,
    TypeName,
    decode,
    row_head,
)
from millstream.errors import CaptureError

LSN, XID, TIMES = st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1), st.integers(-(2**62), 2**62)
NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=8)
VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=9), st.just(UNCHANGED)), max_size=5).map(tuple)


def _values(values: Any) -> bytes:
    said = struct.pack(">H", len(values))
    for each in values:
        if each is None:
            said += b"n"
        elif each is UNCHANGED:
            said += b"u"
        else:
            said += b"t" + struct.pack(">I", len(each)) + each
    return said


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def encode(message: Message) -> bytes:
    """As the server writes it; a number of a subtransaction makes it one of a streamed block."""
    xid: int = getattr(message, "xid", 0)
    sub = struct.pack(">I", xid) if xid else b""
    match message:
        case Begin():
            return b"B" + struct.pack(">QqI", message.commit, message.time - EPOCH, message.xid)
        case Commit():
            head = b"c" + sub if sub else b"C"
            return head + struct.pack(">BQQq", 0, message.commit, message.end, message.time - EPOCH)
        case StreamStart():
            return b"S" + sub + bytes([message.first])
        case StreamStop():
            return b"E"
        case StreamAbort():
            return b"A" + struct.pack(">II", message.xid, message.sub)
        case Relation():
            said = b"R" + sub + struct.pack(">I", message.number) + _text(message.schema) + _text(message.name)
            said += message.identity.encode() + struct.pack(">H", len(message.columns))
            for each in message.columns:
                said += bytes([each.key]) + _text(each.name) + struct.pack(">Ii", each.type, each.modifier)
            return said
        case TypeName():
            return b"Y" + sub + struct.pack(">I", message.number) + _text(message.schema) + _text(message.name)
        case Row():
            said = message.op.encode() + sub + struct.pack(">I", message.relation)
            if message.before:
                said += message.before.encode() + _values(message.old)
            return said + (b"" if message.op == "D" else b"N" + _values(message.new))
        case Truncate():
            flags = message.cascade | message.restart << 1
            return (
                b"T"
                + sub
                + struct.pack(f">IB{len(message.relations)}I", len(message.relations), flags, *message.relations)
            )
        case Origin():
            return b"O" + struct.pack(">Q", message.commit) + _text(message.name)
        case Note():
            head = struct.pack(">BQ", message.transactional, message.lsn)
            return b"M" + sub + head + _text(message.prefix) + struct.pack(">I", len(message.content)) + message.content


SUBS = st.one_of(st.just(0), XID)
MESSAGES = st.one_of(
    st.builds(Begin, LSN, TIMES, XID),
    st.builds(Commit, LSN, LSN, TIMES, SUBS),
    st.builds(StreamStart, XID, st.booleans()),
    st.builds(StreamStop),
    st.builds(StreamAbort, XID, XID),
    st.builds(
        Relation, XID, NAMES, NAMES, st.sampled_from("dnfi"),
        st.lists(st.builds(Attribute, st.booleans(), NAMES, XID, st.integers(-1, 2**31 - 1)), max_size=4).map(tuple), SUBS,
    ),
    st.builds(TypeName, XID, NAMES, NAMES, SUBS),
    st.builds(Row, st.just("I"), XID, st.just(""), st.just(()), VALUES, SUBS),
    st.builds(Row, st.just("U"), XID, st.just(""), st.just(()), VALUES, SUBS),
    st.builds(Row, st.just("U"), XID, st.sampled_from("KO"), VALUES, VALUES, SUBS),
    st.builds(Row, st.just("D"), XID, st.sampled_from("KO"), VALUES, st.just(()), SUBS),
    st.builds(Truncate, st.lists(XID, max_size=3).map(tuple), st.booleans(), st.booleans(), SUBS),
    st.builds(Origin, LSN, NAMES),
    st.builds(Note, st.booleans(), LSN, NAMES, st.binary(max_size=9), SUBS),
)  # fmt: skip


def _streamed(message: Message) -> bool:
    return isinstance(message, Relation | TypeName | Row | Truncate | Note) and message.xid > 0


@given(message=MESSAGES)
def test_a_message_that_was_written_is_read_again(message: Message) -> None:
    assert decode(encode(message), _streamed(message)) == message


@given(message=MESSAGES, data=st.data())
def test_a_message_that_is_cut_or_longer_is_refused(message: Message, data: st.DataObject) -> None:
    whole = encode(message)
    with pytest.raises(CaptureError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))], _streamed(message))
    with pytest.raises(CaptureError):
        decode(whole + b"\0", _streamed(message))


@given(noise=st.binary(max_size=60), streamed=st.booleans())
def test_noise_is_a_message_or_an_error_of_ours(noise: bytes, streamed: bool) -> None:
    with suppress(CaptureError):  # and no other
        message = decode(noise, streamed)
        assert encode(message)[:1] == noise[:1]


@given(row=st.builds(Row, st.just("I"), XID, st.just(""), st.just(()), VALUES, SUBS))
def test_the_head_of_a_row_says_whose_it_is(row: Row) -> None:
    assert row_head(encode(row), row.xid > 0) == (row.xid, row.relation)
