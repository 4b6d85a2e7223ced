"""Segments against a plain dictionary: nothing is lost, nothing is there twice, and only what is touched is moved."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from millstream.errors import CheckpointMismatch
from millstream.kernel.state import segments as segment
from millstream.kernel.state.segments import PLACE, Table, first_place
from millstream.kernel.state.store import FOREVER, FORMAT, NEVER, Memory, Meta

SECOND = 1_000_000
few = settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
seeds = given(seed=st.integers(0, (1 << 32) - 1))

Rows = dict[int, tuple[int, str]]


class Counting(Memory):
    """A store that remembers which segments were moved."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[int] = []
        self.written: list[int] = []

    def get(self, numbers: Sequence[int]) -> list[bytes]:
        self.got += numbers
        return super().get(numbers)

    def put(self, segments: Mapping[int, bytes]) -> None:
        self.written += segments
        super().put(segments)

    def remove(self, numbers: Sequence[int]) -> None:
        self.written += numbers
        super().remove(numbers)


def frame(rows: Rows) -> pl.DataFrame:
    """Rows of (place, text) under their number."""
    return pl.DataFrame(
        {"id": list(rows), "text": [text for _, text in rows.values()], PLACE: [place for place, _ in rows.values()]},
        schema={"id": pl.Int64, "text": pl.String, PLACE: pl.UInt64},
    )


def unframe(found: pl.DataFrame | None) -> Rows:
    if found is None:
        return {}
    rows = found.rows()
    assert len({number for number, _, _ in rows}) == len(rows), "a row is there twice"
    return {number: (place, text) for number, text, place in rows}


def place_of(second: int, low: int) -> int:
    return second << 32 | low


def opened(store: Memory) -> tuple[Meta, Table]:
    meta = Meta.read(store)
    return meta, Table(store, meta, "rows", 3)


def everything(store: Memory) -> list[tuple[int, Rows]]:
    """All segments as stored, each with where it starts, read past the table's own ways."""
    meta = Meta.read(store)
    known = meta.tables.get("rows")
    if known is None or not known.starts:
        assert not store.segments
        return []
    starts, numbers = np.frombuffer(known.starts, np.uint64), np.frombuffer(known.numbers, np.uint32)
    counts, sizes = np.frombuffer(known.rows, np.uint32), np.frombuffer(known.sizes, np.uint32)
    assert starts[0] == 0
    assert (starts[1:] > starts[:-1]).all()
    assert len(set(numbers.tolist())) == len(numbers)
    assert {number & ((1 << 40) - 1) for number in store.segments} == set(numbers.tolist())
    assert {number >> 40 for number in store.segments} == {3}
    found = []
    for start, number, count, size in zip(
        starts.tolist(), numbers.tolist(), counts.tolist(), sizes.tolist(), strict=True
    ):
        data = store.segments[(3 << 40) + number]
        schema = pa.ipc.read_schema(pa.py_buffer(known.schema))
        batch = pa.ipc.read_record_batch(segment._unpacked(data), schema)
        rows = unframe(pl.DataFrame(pl.from_arrow(pa.Table.from_batches([batch]))))
        assert (len(rows), len(data)) == (count, size)
        found.append((start, rows))
    return found


def check_table(chance: Random, steps: int = 8) -> None:
    """A table after any loads, saves and expiries is what a dictionary is."""
    store, model, numbered, horizon = Counting(), dict[int, tuple[int, str]](), 0, 0
    given_out: set[int] = set()
    for _ in range(steps):
        meta, table = opened(store)
        held = len(store.segments)
        store.got, store.written = [], []
        if chance.random() < 0.25:
            horizon = max(horizon, chance.randrange(12)) if chance.random() < 0.9 else 1 << 31
            table.expire(horizon * SECOND + chance.randrange(SECOND))
            meta.write(store)
            stored = {number: row for _, rows in everything(store) for number, row in rows.items()}
            lost = model.keys() - stored.keys()
            assert all(model[number][0] < place_of(horizon, 0) for number in lost), "an unexpired row is gone"
            starts = [start for start, _ in everything(store)]
            assert all(start > place_of(horizon, 0) for start in starts[1:]), "a segment of expired rows is still there"
            model = {number: row for number, row in model.items() if number in stored}
        else:
            low = chance.randrange(horizon, horizon + 6) if horizon < 1 << 30 else horizon
            hashes = (
                chance.sample(range(8), 3)
                if chance.random() < 0.5
                else [chance.randrange(1 << 32) for _ in range(chance.choice((1, 3, 60)))]
            )
            wanted = np.array([place_of(low, low_half) for low_half in hashes], np.uint64)
            if model and chance.random() < 0.3:  # everything there is
                wanted = np.array(sorted({row[0] for row in model.values()}), np.uint64)
            before = everything(store)
            store.got = []
            edges = np.array([start for start, _ in before], np.uint64)
            asked = set((np.searchsorted(edges, wanted, side="right") - 1).tolist()) if before else set()
            rows = unframe(table.load(wanted))
            there = {number: row for _, held_rows in before for number, row in held_rows.items()}
            assert rows == {number: row for number, row in there.items() if row[0] in set(wanted.tolist())}
            assert len(store.got) == len(asked), "more is read than is touched"
            assert {number for number, row in model.items() if row[0] in set(wanted.tolist())} <= rows.keys()
            rate = chance.choice((0.1, 0.5, 1.0))
            for number in [number for number in rows if chance.random() < rate]:
                del rows[number]
            gone = {number for number, row in there.items() if row[0] in set(wanted.tolist())} - rows.keys()
            for _ in range(chance.choice((0, 1, 20, 200))):
                numbered += 1
                rows[numbered] = (int(chance.choice(wanted)), "x" * chance.choice((0, 5, 100)))
            table.save(frame(rows))
            meta.write(store)
            untouched = held - len(asked)
            assert len(store.segments) - len([n for n in store.written if n in store.segments]) == untouched, (
                "what was not touched was written"
            )
            model = {number: row for number, row in model.items() if number not in gone} | rows
        segments = everything(store)
        counted = Counter(number for _, rows in segments for number in rows)
        assert all(times == 1 for times in counted.values()), "a row is in two segments"
        assert {number: row for _, rows in segments for number, row in rows.items()} == model
        homes = Counter(place for _, rows in segments for place in {place for place, _ in rows.values()})
        assert all(times == 1 for times in homes.values()), "a place is cut apart"
        assert (table.rows, table.segments) == (len(model), len(store.segments))
        assert table.bytes == sum(map(len, store.segments.values()))
        given_out |= set(store.segments)
        assert len(given_out) <= Meta.read(store).tables["rows"].next if model else True


@seeds
@few
def test_a_table_is_what_a_dictionary_is(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "LIMIT", 1024)
        check_table(Random(seed))


def filled(places: Iterable[int], text: str = "x" * 50) -> Counting:
    store = Counting()
    meta, table = opened(store)
    table.save(frame({number: (place, text) for number, place in enumerate(places)}))
    meta.write(store)
    return store


def check_growth(_: Random) -> None:
    """Segments stay near the limit: large ones split, small neighbours merge."""
    store = filled([place_of(0, i * 1000) for i in range(5_000)])
    sizes = [int.from_bytes(data[:4], "little") for data in store.segments.values()]  # before compression
    assert len(sizes) > 10
    assert max(sizes) <= 1.3 * segment.LIMIT
    assert min(sizes) >= segment.LIMIT / 4
    meta, table = opened(store)
    rows = unframe(table.load(np.array([place_of(0, i * 1000) for i in range(5_000)], np.uint64)))
    assert len(rows) == 5_000
    kept = {number: row for number, row in rows.items() if number % 100 == 0}
    table.save(frame(kept))
    meta.write(store)
    assert len(store.segments) == 1
    assert {number for _, found in everything(store) for number in found} == kept.keys()


def test_large_segments_split_and_small_neighbours_merge() -> None:
    check_growth(Random(0))


def test_a_batch_that_changes_much_makes_fewer_segments_and_a_small_one_cuts_what_it_touches() -> None:
    places = [place_of(0, i * 1000) for i in range(60_000)]
    store = filled(places)  # some 5 MB
    assert len(store.segments) < 5_000_000 / segment.LIMIT / 2
    meta, table = opened(store)
    some = table.load(np.array(places[::400], np.uint64))
    assert some is not None
    assert some.height == 150
    table.save(some)
    meta.write(store)
    sizes = [int.from_bytes(data[:4], "little") for data in store.segments.values()]  # before compression
    assert max(sizes) <= 1.3 * segment.LIMIT
    assert sum(len(rows) for _, rows in everything(store)) == 60_000


def check_place(_: Random) -> None:
    """Rows of one place stay together, however many there are."""
    store = filled([7] * 2_000 + [9] * 2_000 + list(range(100, 400)))
    homes = [{place for place, _ in rows.values()} for _, rows in everything(store)]
    assert sum(7 in each for each in homes) == sum(9 in each for each in homes) == 1
    assert len(homes) >= 2
    assert sum(len(rows) for _, rows in everything(store)) == 4_300


def test_rows_of_one_place_are_never_cut_apart() -> None:
    check_place(Random(0))


def test_one_place_reads_and_writes_one_segment_of_many() -> None:
    store = filled([place_of(second, i << 20) for second in range(5) for i in range(1_000)])
    assert len(store.segments) > 10
    _, table = opened(store)
    store.got, store.written = [], []
    loaded = table.load(np.array([place_of(2, 5 << 20)], np.uint64))
    assert loaded is not None
    table.save(loaded)
    assert len(store.got) == len(store.written) == 1
    assert store.got == store.written


def check_expiry(_: Random) -> None:
    """What expires in a second goes when that second is over, not before."""
    # The directory knows where segments start: one goes when the next one's first place is over.
    for moment, left in ((5 * SECOND - 1, 3), (5 * SECOND, 2), (9 * SECOND - 1, 2), (9 * SECOND, 0)):
        store = Counting()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segment, "LIMIT", 1)
            meta, table = opened(store)
            table.save(frame({second: (place_of(second, 5), "x") for second in (2, 4, 8)}))
            table.expire(moment)
            meta.write(store)
        assert len(store.segments) == table.rows == left, moment


def test_a_second_that_is_over_goes_and_no_other() -> None:
    check_expiry(Random(0))


def test_the_end_of_time_takes_everything_and_its_beginning_nothing() -> None:
    for moment, left in ((NEVER, 100), (FOREVER, 0)):
        store = filled([place_of(second, 1) for second in range(100)])
        meta, table = opened(store)
        table.expire(moment)
        meta.write(store)
        assert table.rows == left
        assert (len(store.segments) == 0) == (left == 0)


def check_span(_: Random) -> None:
    """A span brings all rows that expire within it, those whose time is clipped too."""
    store = filled([place_of(second, i << 20) for second in range(20) for i in range(400)])
    for low, high, seconds in (
        (5 * SECOND, 8 * SECOND, range(5, 9)),
        (-9 * SECOND, -SECOND, range(1)),
        (NEVER, FOREVER, range(20)),
    ):
        table = opened(store)[1]
        rows = unframe(table.load(np.zeros(0, np.uint64), (low, high)))
        found = {place for place, _ in rows.values()}
        assert found >= {place_of(second, i << 20) for second in seconds for i in range(400)}
        assert len(found) <= 400 * (len(seconds) + 2)


def test_a_span_brings_the_rows_that_expire_within_it() -> None:
    check_span(Random(0))


def test_times_outside_the_range_keep_their_order() -> None:
    assert first_place(NEVER) == first_place(-1) == 0
    assert first_place(FOREVER) == first_place((1 << 33) * SECOND) == (1 << 64) - (1 << 32)


def test_an_emptied_table_can_be_filled_again_under_other_numbers() -> None:
    store = filled([1, 2, 3])
    (first,) = store.segments
    meta, table = opened(store)
    table.load(np.array([1, 2, 3], np.uint64))
    table.save(frame({}))
    meta.write(store)
    assert everything(store) == []
    meta, table = opened(store)
    assert table.load(np.array([2], np.uint64)) is None
    table.save(frame({9: (2, "y")}))
    meta.write(store)
    assert [rows for _, rows in everything(store)] == [{9: (2, "y")}]
    assert first not in store.segments


def test_meta_survives_writing_and_reading() -> None:
    store = filled([1, 2, 3])
    meta = Meta.read(store)
    meta.mark, meta.marks, meta.facts = 5, {"0:1": 7}, {"next": 3}
    meta.write(store)
    assert Meta.read(store) == meta


def test_a_new_bucket_begins_at_no_time_at_all() -> None:
    assert Meta.read(Memory()) == Meta(version=3, mark=NEVER, ordered=True)


@pytest.mark.parametrize("version", [0, FORMAT + 1, 99])
def test_another_format_is_refused(version: int) -> None:
    store = Memory()
    store.set_meta(msgspec.msgpack.encode({"version": version, "something": "else"}))
    with pytest.raises(CheckpointMismatch, match=f"format {version}"):
        Meta.read(store)


# Written by the first version, when segments were not compressed, and by the second. State on disk must open.
GOLDEN_META = (
    "hqd2ZXJzaW9uAaRtYXJrzgOThwCmc2NoZW1hxAClbWFya3OBozA6MM4Dk4cApnRhYmxlc4Gkcm93c5fE6P/////gAAAAEAAAAAAA"
    "CgAMAAYABQAIAAoAAAAAAQQADAAAAAgACAAAAAQACAAAAAQAAAADAAAAeAAAADgAAAAEAAAApP///wAAAQIQAAAAHAAAAAQAAAAA"
    "AAAAAgAAAF9wAAAAAAYACAAEAAYAAABAAAAA1P///wAAARQQAAAAHAAAAAQAAAAAAAAABAAAAHRleHQAAAAABAAEAAQAAAAQABQA"
    "CAAGAAcADAAAABAAEAAAAAAAAQIQAAAAHAAAAAQAAAAAAAAAAgAAAGlkAAAIAAwACAAHAAgAAAAAAAABQAAAAAAAAADECAAAAAAA"
    "AAAAxAQBAAAAxAQDAAAAxARgAQAAAc8AAAB4AAAACaVmYWN0c4GkbmV4dAc="
)
GOLDEN_SEGMENT = (
    "//////gAAAAUAAAAAAAAAAwAFgAGAAUACAAMAAwAAAAAAwQAGAAAAGAAAAAAAAAAAAAKABgADAAEAAgACgAAAIwAAAAQAAAAAwAA"
    "AAAAAAAAAAAABwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABgAAAAAAAAAGAAAAAAAAAABAAAAAAAAACAAAAAAAAAAIAAAAAAA"
    "AABAAAAAAAAAAAUAAAAAAAAASAAAAAAAAAAAAAAAAAAAAEgAAAAAAAAAGAAAAAAAAAAAAAAAAwAAAAMAAAAAAAAAAAAAAAAAAAAD"
    "AAAAAAAAAAEAAAAAAAAAAwAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAgAAAAAAAAADAAAAAAAAAPsAAAAAAAAAAAAAAAAAAAADAAAA"
    "AAAAAAUAAAAAAAAABQAAAAAAAABvbmXOqQAAAAUAAAA8AAAABQAAADwAAAAJAAAAeAAAAA=="
)
GOLDEN_COMPRESSED = (
    "YAEAAKL/////+AAAABQAAQDQDAAWAAYABQAIAAwADBMAgAMEABgAAABgDAABAgDxCAoAGAAMAAQACAAKAAAAjAAAABAAAAADHAAC"
    "AgASBwcADwIAAgBMAAACAAQIABABDQBBAAAAIAYABggAEEANAEEAAAAFBgAwAABIBQAHAgAEEAAESAAAAgAAhAAABAAIAgAEEAAE"
    "aAAEEAAEAgAEGAATAhEABCAAE/sQAAQCAAQYAASQAAQIAFNvbmXOqagAFzwIAIAJAAAAeAAAAA=="
)


@pytest.mark.parametrize("segment_on_disk", [GOLDEN_SEGMENT, GOLDEN_COMPRESSED])
def test_what_earlier_versions_wrote_still_opens(segment_on_disk: str) -> None:
    store = Counting()
    store.set_meta(base64.b64decode(GOLDEN_META))
    store.segments[(3 << 40) + 1] = base64.b64decode(segment_on_disk)
    meta, table = opened(store)
    assert (meta.version, meta.ordered) == (3, False)
    assert (meta.mark, meta.marks, meta.facts) == (60 * SECOND, {"0:0": 60 * SECOND}, {"next": 7})
    assert unframe(table.load(np.array([place_of(60, 5), place_of(120, 9)], np.uint64))) == {
        1: (place_of(60, 5), "one"),
        2: (place_of(60, 5), "Ω"),
        3: (place_of(120, 9), None),
    }
    assert (table.rows, table.segments) == (3, 1)
    table.expire(121 * SECOND)
    assert (table.rows, store.segments) == (0, {})


def test_ids_that_grow_lie_side_by_side_and_equal_keys_in_one_place() -> None:
    ids = [5 << 32 | number for number in range(1000)]
    rows = pl.DataFrame({"id": [*ids, None, -1, 7], "k": ["a"] * 1003})
    alone = segment.ordered_place(rows, ["id"])
    assert len(np.unique(alone)) == 1003
    assert len(np.unique(alone[:1000] >> np.uint64(10))) <= 2  # in a thousand neighbouring places, not all over
    small = rows.filter(pl.col("id").is_between(-1, 7)).with_columns(pl.col("id").cast(pl.Int32))
    assert segment.ordered_place(small, ["id"]).tolist() == alone[1001:].tolist()
    both = segment.ordered_place(rows.with_columns(pl.lit(1).alias("one")), ["one", "id"])
    assert len(np.unique(both)) > 900  # groups of one first key are not all in one place
    assert segment.ordered_place(rows, ["k", "id"]).tolist() == segment.place(rows, ["k", "id"]).tolist()
