"""Admission where records are read, against admission as a stage of its own: the same verdicts, counts and marks.

Records come in batches and, within a batch, in pieces of any size. Some are left to Spark, heartbeats and malformed ones: what
Spark would make of them is said by :mod:`millstream.decode.leftovers`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream import Pipeline, Record
from millstream.decode.decoder import Decoder, FeedDecoder
from millstream.decode.leftovers import judge, to_records
from millstream.kernel.admission.gate import Admission
from millstream.kernel.aggregates import preaggregate
from millstream.kernel.arrow import from_bytes
from millstream.kernel.exchange.chunk import Chunk, Kind, read_mark, read_steps
from millstream.kernel.exchange.reports import Count
from millstream.kernel.host import Host
from millstream.kernel.state.store import NEVER, Memory
from millstream.log.heartbeat import PREFIX, Beat
from millstream.plan.build import ADMIT, DRIVER
from millstream.runtime.setup import chain_of
from millstream.window import tumbling

_SECOND = 1_000_000


@cache
def decoder(*, early: bool) -> Decoder:
    pipeline = Pipeline("p", log="sqlite:never.db")
    events = pipeline.stream("events", "k long, at timestamp", time="at", delay="2 seconds", ahead="1 hour")
    pipeline.view("all", events.where("k > 0"))
    pipeline.view("counted", events.group_by("k", tumbling("at", "3 seconds")).agg(n="count(*)"))
    pipeline.view("named", events.join(pipeline.table("names", "k long, name string", key="k"), "k", as_of="at"))
    chain = replace(chain_of(pipeline), early=early)
    return Decoder(Admission(chain), utc=True)


@st.composite
def pieces(draw: st.DrawFn) -> list[list[list[Record]]]:
    """Batches of pieces of records of one partition."""
    offset, batches = 0, []
    for _ in range(draw(st.integers(1, 4))):
        batch = []
        for _ in range(draw(st.integers(1, 3))):
            piece = []
            for _ in range(draw(st.integers(1, 5))):
                second = draw(st.integers(0, 30))
                kind = draw(st.sampled_from(["good"] * 8 + ["beat", "bad", "far"]))
                key, value = None, b'{"k": %d, "at": "1970-01-01T00:00:%02dZ"}' % (second % 3, second)
                if kind == "beat":
                    key, value = PREFIX + b"0", b'{"time":%d,"pipeline":null}' % (second * _SECOND)
                elif kind == "bad":
                    value = b'{"k": true}'
                elif kind == "far":
                    value = b'{"k": 1, "at": "1999-01-01T00:00:00Z"}'
                piece.append(Record("events", 0, offset, key, value, 0, offset // 2, ()))
                offset += 1
            batch.append(piece)
        batches.append(batch)
    return batches


def left_over(made: Decoder, piece: list[Record], left: Any) -> list[Chunk]:
    """What Spark and the packing step make of the records that were left."""
    rest = [record for record, is_left in zip(piece, left, strict=True) if is_left]
    feed = made.feeds["events"]
    assert isinstance(feed, FeedDecoder)
    return list(made.admission.pack_feed(feed.feed, 0, judge(feed, "p", 0, rest))) if rest else []


@st.composite
def told(draw: st.DrawFn) -> tuple[list[list[list[Record]]], list[list[Beat]]]:
    """Such batches, each with heartbeats of the ledger: before some of its records, and at its end those that no batch had before."""
    batches, beats, start = draw(pieces()), [], 0
    for batch in batches:
        end = start + sum(map(len, batch))
        found = []
        for _ in range(draw(st.integers(0, 3))):
            at = draw(st.integers(start, end) | st.just(end))
            came = None if at == end else max(at - 1, 0) // 2 * 1000
            found.append(Beat("events", 0, at, draw(st.integers(0, 40)) * _SECOND, came, {}))
        beats.append(sorted(found, key=lambda beat: (beat.offset, beat.time)))
        start = end
    return batches, beats


def staged(batches: list[list[list[Record]]], beats: list[list[Beat]] | None = None) -> Iterator[list[Chunk]]:
    made, stores = decoder(early=False), defaultdict[tuple[int, int, int], Memory](Memory)
    for batch, heard in zip(batches, beats or [[] for _ in batches], strict=True):
        chunks = made.tell(heard)
        for piece in batch:
            packed, left = made.pack("events", 0, to_records(piece))
            chunks += [*packed, *left_over(made, piece, left)]
        yield Host(made.admission.chain, {}).run_stage(ADMIT, chunks, stores)


def gated(batches: list[list[list[Record]]], beats: list[list[Beat]] | None = None) -> Iterator[list[Chunk]]:
    made, watermark = decoder(early=True), None
    for batch, heard in zip(batches, beats or [[] for _ in batches], strict=True):
        chunks, gate = list[Chunk](), made.gate("events", watermark, heard)
        assert gate is not None
        for piece in batch:
            packed, left = made.pack("events", 0, to_records(piece), gate)
            chunks += [*packed, *left_over(made, piece, left)]
        chunks += made.leave("events", 0, gate)
        waiting = [chunk for chunk in chunks if made.admission.is_waiting(chunk.stage, chunk.target)]
        done = [chunk for chunk in chunks if chunk not in waiting] + list(made.admission.admit_waiting(waiting))
        counted = [msgspec.msgpack.decode(c.data, type=Count).watermark for c in done if c.kind == Kind.COUNT]
        watermark = max((each for each in (*counted, watermark) if each is not None), default=None)
        yield done


def facts(chunks: list[Chunk]) -> dict[str, Any]:
    """What chunks say, however they are cut."""
    rows: dict[tuple[int, int], list[Any]] = defaultdict(list)
    marks: dict[tuple[int, int, str], int] = defaultdict(lambda: NEVER)
    counts: dict[str, int] = defaultdict(int)
    steps: dict[tuple[int, int, str], set[tuple[int, int]]] = defaultdict(set)
    for chunk in chunks:
        if chunk.kind == Kind.COUNT:
            said = msgspec.structs.asdict(msgspec.msgpack.decode(chunk.data, type=Count))
            for name in ("records", "admitted", "late", "future", "malformed", "heartbeats"):
                counts[name] += said[name]
            counts["next"] = max(counts["next"], said["next"])
        elif chunk.kind == Kind.STEPS:
            origin, told = read_steps(chunk.data)
            steps[chunk.target, chunk.bucket, origin] |= set(zip(*(each.tolist() for each in told), strict=True))
        elif chunk.kind == Kind.MARK:
            origin, time = read_mark(chunk.data)
            place = chunk.target, chunk.bucket, origin
            marks[place] = max(marks[place], time)
        else:
            place_of = chunk.kind, chunk.target if chunk.stage != DRIVER else -chunk.target
            rows[place_of] += from_bytes(chunk.data).rows()
    return {
        "rows": {place: sorted(found, key=repr) for place, found in rows.items()},
        "marks": marks,
        "counts": counts,
        "steps": {place: dict(sorted(told)) for place, told in steps.items()},  # of one time the last counts
    }


@settings(deadline=None)
@given(pieces())
def test_records_are_judged_alike_where_they_are_read_and_in_a_stage(batches: list[list[list[Record]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preaggregate, "SHARE", 0)  # rows that are cut otherwise have other sums
        for early, late in zip(gated(batches), staged(batches), strict=True):
            assert facts(early) == facts(late)


@settings(deadline=None)
@given(told())
def test_heartbeats_raise_the_watermark_alike_there_and_where_batches_are_cut_otherwise(
    given: tuple[list[list[list[Record]]], list[list[Beat]]],
) -> None:
    batches, beats = given
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preaggregate, "SHARE", 0)
        many = list(gated(batches, beats))
        for early, late in zip(many, staged(batches, beats), strict=True):
            assert facts(early) == facts(late)
        settled = [
            [beat if beat.appended is not None else beat._replace(appended=newest(batch)) for beat in each]
            for each, batch in zip(beats, batches, strict=True)
        ]
        (once,) = staged([[piece for batch in batches for piece in batch]], [[b for each in settled for b in each]])
        again = [chunk for chunks in staged(batches, settled) for chunk in chunks]
    whole = facts(once)
    for name, said in facts([chunk for chunks in many for chunk in chunks]).items():
        assert name == "steps" or said == whole[name], name
    assert {place: rising(steps) for place, steps in facts(again)["steps"].items()} == {
        place: rising(steps) for place, steps in whole["steps"].items()
    }


def newest(batch: list[list[Record]]) -> int:
    """When the last record of a batch was appended, in microseconds."""
    return batch[-1][-1].appended * 1000


def rising(steps: dict[int, int]) -> dict[int, int]:
    """Steps without those that raise nothing."""
    found: dict[int, int] = {}
    for appended, mark in sorted(steps.items()):
        if mark > max(found.values(), default=NEVER):
            found[appended] = mark
    return found


def test_a_stream_with_sequences_keeps_its_stage() -> None:
    pipeline = Pipeline("p", log="sqlite:never.db")
    events = pipeline.stream("events", "k long, n long, at timestamp", time="at", sequence=("k", "n"))
    pipeline.view("all", events)
    chain = replace(chain_of(pipeline), early=True)
    assert chain.stages == (ADMIT,)
    assert Decoder(Admission(chain), utc=True).gate("events", None) is None
