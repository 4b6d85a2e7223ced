"""The store against a dictionary: whatever batches come, and whichever come twice, they agree."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.address import PostgresAddress, parse_address
from millstream.store import judge_at, open_reader, open_writer
from millstream.store.contract import Batch, StoreReader, StoreWriter, Target
from millstream.store.postgres.reader import PostgresReader
from millstream.store.postgres.writer import postgres_writer
from millstream.store.rejects import Judge
from millstream.store.sqlite.reader import SqliteReader
from millstream.store.sqlite.writer import sqlite_writer
from millstream.testing import PostgresServer
from tests.contracts.store import accept, changes, counts

KEYED = Target("keyed", pa.schema([("k", pa.float64()), ("s", pa.string()), ("v", pa.float64())]), ("k", "s"))
BAG = Target("bag", KEYED.schema)

Key = tuple[float | None, str | None]
Row = tuple[float | None, str | None, float | None]

numbers = st.sampled_from([None, 0.0, -0.0, 1.5, math.nan, math.inf])
keys = st.tuples(numbers, st.sampled_from([None, "", "a"]))
rows = st.tuples(numbers, st.sampled_from([None, "", "a"]), numbers)
steps = st.lists(st.tuples(keys, st.none() | st.tuples(numbers)), max_size=8)
"""For each step a key and its new value, or None to remove it."""

texts = st.sampled_from([None, "", "a", "\0", "a\0", "x" * 3_000])
odd_steps = st.lists(st.tuples(st.tuples(st.just(0.0), texts), st.none() | st.tuples(texts)), max_size=8)
ODD = Target("keyed", pa.schema([("k", pa.float64()), ("s", pa.string()), ("v", pa.string())]), ("k", "s"))
ODD_BAG = Target("bag", ODD.schema)


def canonical(value: Any) -> Any:
    """Values that count as one become one: nulls, NaNs, zeros."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def all_canonical(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(canonical, row))


def stored(store: StoreReader, view: str) -> list[tuple[Any, ...]]:
    return [all_canonical(tuple(row.values())) for row in store.table(view).to_pylist()]


@st.composite
def keyed_batch(draw: Any, model: dict[Key, Row], steps: Any = steps) -> list[tuple[Any, ...]]:
    """Changes that take the model through some steps; the model is left where they end."""
    before = dict(model)
    out: list[tuple[Any, ...]] = []
    touched: list[Key] = []
    for key, value in draw(steps):
        name = all_canonical(key)
        touched.append(name)
        if name in model:
            out.append((*model.pop(name), -1))
        if value is not None:
            model[name] = (*key, *value)
            out.append((*model[name], 1))
    if draw(st.booleans()):  # as upserts: the new row of a changed key alone, and the old one of a removed key
        out = []
        for name in dict.fromkeys(touched):
            if name in model:
                out.append((*model[name], 1))
            elif name in before:
                out.append((*before[name], -1))
    return draw(st.permutations(out))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_batches_against_a_dictionary_and_any_replay_changes_nothing(data: st.DataObject) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        sqlite_writer(Path(folder, "views.db"), keep=3) as writer,
        SqliteReader(Path(folder, "views.db")) as store,
    ):
        check(data, writer, store)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_same_in_postgresql(postgres: PostgresServer, data: st.DataObject) -> None:
    address = parse_address(f"{postgres.address}?schema=model")
    assert isinstance(address, PostgresAddress)
    with postgres_writer(address, keep=3) as writer, PostgresReader(address) as store:
        writer.claim("p", takeover=True)
        writer.forget("p")  # what the example before has left
        check(data, writer, store)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_view_holds_the_rows_that_are_not_refused_whatever_batches_they_come_in(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:{folder}/views.db"
        with open_writer(address) as writer, open_reader(address) as store:
            check_refusing(data, writer, store, judge_at(address), lambda _row, _target: False)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_same_in_postgresql_which_refuses_some(postgres: PostgresServer, data: st.DataObject) -> None:
    address = f"{postgres.address}?schema=refusing"
    with open_writer(address) as writer, open_reader(address) as store:
        writer.claim("p", takeover=True)
        writer.forget("p")
        check_refusing(
            data,
            writer,
            store,
            judge_at(address),
            lambda row, target: (
                any("\0" in str(text or "") for text in row[1:]) or (target is ODD and len(row[1] or "") > 9)
            ),
        )


def check_refusing(
    data: st.DataObject,
    writer: StoreWriter,
    store: StoreReader,
    judge: Judge | None,
    refused: Callable[[Row, Target], bool],
) -> None:
    """Draw batches with rows that may be refused; what is stored is the model less those."""
    model: dict[Key, Row] = {}
    bag: Counter[tuple[Any, ...]] = Counter()
    fence = writer.claim("p")
    writer.prepare("p", "f", [ODD, ODD_BAG])
    for number in range(data.draw(st.integers(1, 5))):
        before = dict(model)
        keyed = data.draw(keyed_batch(model, odd_steps))
        new = data.draw(st.lists(st.tuples(numbers, texts, texts), max_size=4))
        gone = data.draw(st.lists(st.sampled_from(sorted(bag.elements(), key=str)), max_size=3)) if bag else []
        gone = list((Counter(gone) & bag).elements())
        weighted: list[tuple[Any, ...]] = [(*row, 1) for row in new]
        weighted += [(*(math.nan if value == "NaN" else value for value in row), -1) for row in gone]
        net = Counter(all_canonical(row) for row in new)
        net.subtract(gone)
        bag.update(all_canonical(row) for row in new)
        bag -= Counter(gone)
        kept, letters = accept(ODD, changes(ODD, *keyed), judge)
        rest, more = accept(ODD_BAG, changes(ODD_BAG, *weighted), judge)
        assert writer.commit(Batch("c", number, fence, {"t": {0: number + 1}}, {"keyed": kept, "bag": rest}))
        assert Counter(stored(store, "keyed")) == Counter(
            all_canonical(row) for row in model.values() if not refused(row, ODD)
        )
        assert Counter(stored(store, "bag")) == Counter(row for row in bag.elements() if not refused(row, ODD_BAG))
        came = [row for name, row in model.items() if all_canonical(before.get(name, ())) != all_canonical(row)]
        assert len(letters) >= sum(refused(row, ODD) for row in came)
        assert len(more) == sum(n > 0 and refused(row, ODD_BAG) for row, n in net.items())


def check(data: st.DataObject, writer: StoreWriter, store: StoreReader) -> None:
    """Draw batches, commit them, some of them twice, and compare after each."""
    model: dict[Key, Row] = {}
    bag: Counter[tuple[Any, ...]] = Counter()
    fence = writer.claim("p")
    writer.prepare("p", "f", [KEYED, BAG])
    for number in range(data.draw(st.integers(1, 6))):
        keyed = data.draw(keyed_batch(model))
        wanted = data.draw(st.lists(rows, max_size=5))
        gone = data.draw(st.lists(st.sampled_from(sorted(bag.elements(), key=str)), max_size=3)) if bag else []
        gone = list((Counter(gone) & bag).elements())
        weighted = [(*row, 1) for row in wanted] + [
            (*(math.nan if value == "NaN" else value for value in row), -1) for row in gone
        ]
        bag.update(all_canonical(row) for row in wanted)
        bag -= Counter(gone)
        batch = Batch(
            "c",
            number,
            fence,
            {"t": {0: number + 1}},
            {"keyed": changes(KEYED, *keyed), "bag": changes(BAG, *data.draw(st.permutations(weighted)))},
            counts=counts(("t", 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, None)),
        )
        assert writer.commit(batch)
        for _ in range(data.draw(st.integers(0, 2))):
            assert not writer.commit(batch)
        assert Counter(stored(store, "keyed")) == Counter(all_canonical(row) for row in model.values())
        assert Counter(stored(store, "bag")) == bag
        assert store.admission().to_pylist()[0]["records"] == number + 1
        for name, row in model.items():
            found = store.get("keyed", row[:2])
            assert found is not None
            assert all_canonical(tuple(found.values()))[:2] == name
