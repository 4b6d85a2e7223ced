"""What every store must do. An engine's tests inherit this class and give the fixtures ``writer``, ``again`` and ``store``.

With them come ``judge``, what the engine says of rows before it is given them, and ``refusable``, which of ``PLANTED`` it refuses.
"""

from __future__ import annotations

import itertools
import math
import random
import string
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import (
    AlreadyRunning,
    CheckpointMismatch,
    PipelineError,
    TakenOver,
    UnknownView,
    ViewBehind,
    ViewError,
)
from millstream.log.heartbeat import Beat
from millstream.store.contract import (
    COUNTS,
    ORIGIN,
    REJECTS,
    TIME,
    WEIGHT,
    Batch,
    Condition,
    Hidden,
    Page,
    Refusal,
    StoreReader,
    StoreWriter,
    Target,
    Told,
)
from millstream.store.hiding import Hiding
from millstream.store.net_changes import net_of
from millstream.store.position import wait_for
from millstream.store.rejects import Judge, sort_out

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PIPELINE = "shop"
FINGERPRINT = "f00d"

TOTALS = Target("totals", pa.schema([("user", pa.string()), ("n", pa.int64()), ("total", pa.float64())]), ("user",))
PAIRS = Target("pairs", pa.schema([("a", pa.int64()), ("b", pa.string()), ("n", pa.int64())]), ("a", "b"))
BAG = Target("bag", pa.schema([("page", pa.string()), ("score", pa.float64())]))
FACTS = Target(
    "facts",
    pa.schema([("page", pa.string()), ("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())]),
    append=True,
)
TARGETS = [TOTALS, PAIRS, BAG, FACTS]
ODD = Target(
    "odd",
    pa.schema(
        [
            ("id", pa.string()), ("text", pa.string()), ("at", TIME), ("day", pa.date32()), ("tags", pa.list_(pa.string())),
            ("place", pa.struct([("name", pa.string())])), ("more", pa.map_(pa.string(), pa.string())), ("long", pa.duration("us")),
            ("raw", pa.binary()), ("real", pa.float64()), ("price", pa.decimal128(38, 10)),
        ]
    ),
    ("id",),
)  # fmt: skip
ODD_BAG = Target("odd_bag", ODD.schema)
ODD_FACTS = Target("odd_facts", pa.schema([*ODD.schema, *(FACTS.schema.field(name) for name in ORIGIN)]), append=True)
LETTERS = "".join(random.Random(7).choices(string.ascii_letters, k=2_700))
"""A key that cannot be compressed, too long for some index."""
PLANTED: dict[str, dict[str, Any]] = {
    "NUL in text": {"text": "a\0b"},
    "NUL in a list": {"tags": ["fine", None, "\0"]},
    "NUL in a struct": {"place": {"name": "\0"}},
    "NUL in a map": {"more": [("k", "a\0")]},
    "NUL in a map's key": {"more": [("\0", "v")]},
    "a backslash and u0000": {"text": "\\u0000", "tags": ["\\u0000", "\\\\u0000"]},
    "NUL in bytes": {"raw": b"\0"},
    "before all calendars": {"at": -(2**63) + 1},
    "before time itself": {"at": -(2**63)},
    "4714 BC": {"at": -210_866_803_200_000_001},
    "4713 BC": {"at": -210_866_803_200_000_000},
    "the last moment": {"at": 2**63 - 1},
    "the last but one": {"at": 2**63 - 2},
    "first day": {"day": -2_440_589},
    "4713 BC, a day": {"day": -2_440_588},
    "last day": {"day": 2**31 - 1},
    "long spans": {"long": 2**63 - 1},
    "spans before": {"long": -(2**63)},
    "numbers": {"real": 5e-324, "price": Decimal("9" * 28 + "." + "9" * 10)},
    "more numbers": {"real": 1.7976931348623157e308, "price": Decimal("-" + "9" * 28 + "." + "9" * 10)},
    LETTERS[:2_681]: {},
    LETTERS: {},
    "id \0": {},
    "plain": {"text": "fine"},
}  # fmt: skip
"""Rows by their id, with what some database may not have a place for."""

BEAT = Beat("clicks", 1, 5, 17, appended=0, ends={"clicks": {"0": 9, "1": 5}}, topic_id="t1")

Change = tuple[Any, ...]


def changes(target: Target, *rows: Change) -> Any:
    """Rows of values with the weight last."""
    schema = target.schema.append(pa.field(WEIGHT, pa.int64()))
    return pa.table(
        [pa.array(list(c), f.type) for c, f in zip(columns(rows, schema), schema, strict=True)], schema=schema
    )


def columns(rows: Sequence[Change], schema: Any) -> Iterable[Sequence[Any]]:
    return zip(*rows, strict=True) if rows else [[] for _ in schema]


def rejects(*rows: Change) -> Any:
    return pa.table(list(map(list, columns(rows, REJECTS))), schema=REJECTS)


def counts(*rows: Change) -> Any:
    return pa.table(list(map(list, columns(rows, COUNTS))), schema=COUNTS)


def flood_of_letters(writer: StoreWriter, store: StoreReader) -> None:
    """A store that keeps ten dead letters gets many more: the newest are there, and all are counted."""
    batches = Batches(writer)
    for batch in range(6):
        letters = [("t", 0, 4 * batch + at, NOON, NOON, "late", "1 s") for at in range(4)]
        refused = [("view bag", 0, batch, None, None, "refused", "text=…")]
        seen = counts(("t", 0, 4, 0, 4, 0, 0, 0, 0, 0, 0, None))
        batches.commit(BAG, rejects=rejects(*letters, *refused), counts=seen)
    found = store.dead_letters("shop", limit=100).to_pylist()
    assert sorted(row["offset"] for row in found if row["reason"] == "late") == list(range(16, 24))
    assert sorted(row["offset"] for row in found if row["reason"] == "refused") == [4, 5]
    assert {each.name: each.refused for each in store.views()}["bag"] == 6
    assert [(row["records"], row["late"]) for row in store.admission().to_pylist()] == [(24, 24)]
    writer.forget("shop")
    Batches(writer)
    assert {each.name: each.refused for each in store.views()}["bag"] == 0


def planted(target: Target, *rows: tuple[str, int]) -> Any:
    """Changes by the id of planted rows, each with a weight."""
    wanted: list[Change] = []
    for place, (name, weight) in enumerate(rows):
        values = {"id": name, **PLANTED[name], **dict(zip(ORIGIN, ("t", 0, place), strict=True)), WEIGHT: weight}
        wanted.append(tuple(values.get(each) for each in (*target.schema.names, WEIGHT)))
    return changes(target, *wanted)


def rows(store: StoreReader, view: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in store.table(view).to_pylist()]


def accept(target: Target, table: Any, judge: Judge | None) -> tuple[Any, list[Refusal]]:
    """What is left of changes for a store, and what it refuses."""
    return (table, []) if judge is None else sort_out(target, table, judge)


def flood_of_beats(writer: StoreWriter) -> None:
    """A ledger that keeps five batches gets many heartbeats: of each place and append time the ones of these stay, and one more."""
    batches = Batches(writer)
    told = [Beat("t", 0, 3, time, appended=0, ends={}) for time in range(20)]
    apart = [Beat("t", 1, 3, time, appended=time, ends={}) for time in range(20)]
    for pair in zip(told, apart, strict=True):
        batches.commit(BAG, beats=pair)
    kept = writer.heartbeats(PIPELINE)
    assert [beat for *_, beat in kept if beat.partition == 0] == told[14:]
    assert [beat for *_, beat in kept if beat.partition == 1] == apart
    assert [batch for _, batch, beat in kept if beat.partition == 0] == list(range(14, 20))


class Batches:
    """Commits batches one after the other, as a pipeline would."""

    def __init__(self, writer: StoreWriter, checkpoint: str = "c1", *, takeover: bool = False) -> None:
        self.writer, self.checkpoint, self.next = writer, checkpoint, 0
        self.fence = writer.claim(PIPELINE, takeover=takeover)
        writer.prepare(PIPELINE, FINGERPRINT, TARGETS)

    def batch(self, *parts: tuple[Target, Sequence[Change]], **more: Any) -> Batch:
        return Batch(
            more.pop("checkpoint", self.checkpoint),
            more.pop("batch", self.next),
            more.pop("fence", self.fence),
            changes={target.name: changes(target, *each) for target, each in parts},
            **more,
        )

    def commit(self, target: Target, *each: Change, **more: Any) -> None:
        assert self.writer.commit(self.batch((target, each), **more))
        self.next += 1


class StoreContract:
    """Inherit, and provide the fixtures."""

    @pytest.fixture
    def batches(self, writer: StoreWriter) -> Batches:
        return Batches(writer)

    # views

    def test_a_new_pipeline_has_empty_views_and_no_ledger(self, batches: Batches, store: StoreReader) -> None:
        assert {view.name for view in store.views()} == {"totals", "pairs", "bag", "facts"}
        for target in TARGETS:
            table = store.table(target.name)
            assert table.num_rows == 0
            assert table.schema == target.schema
        assert batches.writer.last(PIPELINE) is store.last(PIPELINE) is None
        assert batches.writer.entries(PIPELINE) == []
        assert store.last(PIPELINE) is None

    def test_a_row_that_appears_is_stored_and_one_that_disappears_is_removed(
        self, batches: Batches, store: StoreReader
    ) -> None:
        batches.commit(TOTALS, ("ann", 1, 2.5, 1), ("bob", 2, 0.5, 1))
        assert rows(store, "totals") == [("ann", 1, 2.5), ("bob", 2, 0.5)]
        batches.commit(TOTALS, ("ann", 1, 2.5, -1))
        assert rows(store, "totals") == [("bob", 2, 0.5)]

    @pytest.mark.parametrize("style", ["both", "reversed", "upsert"])
    def test_an_updated_key_may_come_as_both_rows_or_as_the_new_one_alone(
        self, batches: Batches, store: StoreReader, style: str
    ) -> None:
        batches.commit(TOTALS, ("ann", 1, 1.0, 1), ("bob", 1, 1.0, 1))
        old, new = ("ann", 1, 1.0, -1), ("ann", 2, 3.0, 1)
        batches.commit(TOTALS, *{"both": (old, new), "reversed": (new, old), "upsert": (new,)}[style])
        assert rows(store, "totals") == [("ann", 2, 3.0), ("bob", 1, 1.0)]

    def test_rows_that_cancel_out_change_nothing(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(TOTALS, ("ann", 1, math.nan, 1))
        batches.commit(
            TOTALS, ("bob", 1, 1.0, 1), ("bob", 1, 1.0, -1), ("ann", 1, math.nan, -1), ("ann", 1, math.nan, 1)
        )
        assert [row[:2] for row in rows(store, "totals")] == [("ann", 1)]

    def test_a_row_goes_through_several_states_in_one_batch(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(
            TOTALS, ("a", 1, 1.0, 1), ("a", 1, 1.0, -1), ("a", 2, 2.0, 1), ("a", 2, 2.0, -1), ("a", 3, None, 1)
        )
        assert rows(store, "totals") == [("a", 3, None)]

    @pytest.mark.parametrize(
        "wrong",
        [
            [("ann", 1, 1.0, 1), ("ann", 2, 1.0, 1)],
            [("ann", 1, 1.0, 2)],
            [("ann", 0, 0.0, -1), ("ann", 1, 1.0, 1), ("ann", 2, 1.0, 1)],
        ],
    )
    def test_two_rows_for_one_key_are_an_error_that_names_view_and_key(
        self, batches: Batches, store: StoreReader, wrong: list[Change]
    ) -> None:
        batches.commit(TOTALS, ("ann", 0, 0.0, 1))
        with pytest.raises(PipelineError, match=r"'totals', key user='ann'"):
            batches.writer.commit(batches.batch((TOTALS, wrong), (BAG, [("home", 1.0, 1)])))
        assert rows(store, "totals") == [("ann", 0, 0.0)]
        assert rows(store, "bag") == []
        batches.commit(TOTALS, ("ann", 5, 5.0, 1))  # the number of the batch is still free

    def test_keys_may_be_null(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(PAIRS, (1, "x", 10, 1), (2, "y", 10, 1))
        batches.commit(PAIRS, (None, "x", 20, 1), (1, None, 30, 1), (None, None, 40, 1), (3, "z", 1, 1))
        batches.commit(PAIRS, (None, "x", 21, 1), (1, None, 30, -1), (1, None, 31, 1), (1, "x", 11, 1))
        kept = {(1, "x", 11), (2, "y", 10), (3, "z", 1), (None, "x", 21), (1, None, 31), (None, None, 40)}
        assert sorted(rows(store, "pairs"), key=str) == sorted(kept, key=str)
        assert store.get("pairs", [None, "x"]) == {"a": None, "b": "x", "n": 21}
        assert store.get("pairs", [None, None]) == {"a": None, "b": None, "n": 40}
        assert store.get("pairs", [None, "y"]) is None
        batches.commit(PAIRS, (None, None, 40, -1), (None, "x", 21, -1), (2, "y", 10, -1))
        assert sorted(rows(store, "pairs"), key=str) == sorted({(1, "x", 11), (1, None, 31), (3, "z", 1)}, key=str)

    def test_zero_and_minus_zero_are_one_key_and_nan_is_one_key(self, writer: StoreWriter, store: StoreReader) -> None:
        target = Target("reals", pa.schema([("x", pa.float64()), ("n", pa.int64())]), ("x",))
        fence = writer.claim("reals")
        writer.prepare("reals", FINGERPRINT, [target])

        def commit(number: int, *each: Change) -> None:
            assert writer.commit(Batch("c", number, fence, changes={"reals": changes(target, *each)}))

        commit(0, (0.0, 1, 1), (math.nan, 1, 1), (math.inf, 1, 1))
        commit(1, (-0.0, 2, 1), (math.nan, 2, 1))
        assert sorted(map(str, rows(store, "reals"))) == sorted(["(0.0, 2)", "(inf, 1)", "(nan, 2)"])
        commit(2, (-0.0, 2, -1), (0.0, 3, 1), (math.nan, 2, -1))
        assert sorted(map(str, rows(store, "reals"))) == sorted(["(0.0, 3)", "(inf, 1)"])
        with pytest.raises(PipelineError, match="more than one row"):
            writer.commit(Batch("c", 3, fence, changes={"reals": changes(target, (0.0, 1, 1), (-0.0, 2, 1))}))
        assert store.get("reals", [-0.0]) == {"x": 0.0, "n": 3}
        commit(3, (0.0, 3, -1))
        commit(4, (-0.0, 4, 1))
        assert sorted(map(str, rows(store, "reals"))) == sorted(["(0.0, 4)", "(inf, 1)"])

    def test_the_first_rows_are_those_that_all_begin_with(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(TOTALS, *((user, 1, 1.0, 1) for user in "dbac"))
        batches.commit(BAG, ("home", 1.0, 3), ("about", 1.0, 2))
        for view, count in (("totals", 4), ("bag", 5)):
            whole = store.table(view)
            assert whole.num_rows == count
            for limit in (0, 1, 3, count, count + 1):
                assert store.table(view, limit).equals(whole.slice(0, limit))

    def test_a_view_without_a_key_counts_equal_rows(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(
            BAG, ("home", 1.0, 1), ("home", 1.0, 1), ("home", None, 1), (None, math.nan, 2), ("home", 0.0, 1)
        )
        batches.commit(BAG, ("home", 1.0, 1), (None, math.nan, -1), ("home", None, -1), ("home", -0.0, -1))
        assert list(map(str, rows(store, "bag"))) == ["(None, nan)", "('home', 1.0)", "('home', 1.0)", "('home', 1.0)"]
        (info,) = [view for view in store.views() if view.name == "bag"]
        assert info.rows == 4

    def test_a_count_below_zero_is_an_error_that_names_the_row(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(BAG, ("home", 1.0, 1))
        with pytest.raises(PipelineError, match=r"'bag', row page='home', score=1\.0.*count would be -1"):
            batches.writer.commit(batches.batch((BAG, [("home", 1.0, -2), ("new", 1.0, 1)])))
        with pytest.raises(PipelineError, match="never"):
            batches.writer.commit(batches.batch((BAG, [("never", 1.0, -1)])))
        assert rows(store, "bag") == [("home", 1.0)]

    def test_a_batch_may_bring_what_its_changes_come_to(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(PAIRS, (1, "x", 5, 1), (None, "y", 6, 1))
        batches.commit(BAG, ("home", 1.0, 2))
        for whole in (
            batches.batch((PAIRS, [(1, "x", 5, -1), (1, "x", 7, 1), (None, "y", 6, -1)]), batch=2),
            batches.batch((BAG, [("home", 1.0, -1), ("away", 2.0, 1)]), batch=3),
        ):
            targets = {target.name: target for target in TARGETS}
            nets = {view: net_of(targets[view], table) for view, table in whole.changes.items()}
            assert batches.writer.commit(replace(whole, changes=nets))
        assert rows(store, "pairs") == [(1, "x", 7)]
        assert sorted(rows(store, "bag")) == [("away", 2.0), ("home", 1.0)]

    def test_rows_of_a_growing_view_are_told_apart_by_their_origin(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(FACTS, ("home", "t", 0, 1, 1), ("home", "t", 0, 0, 1), ("home", "t", 1, 0, 1))
        assert rows(store, "facts") == [("home", "t", 0, 0), ("home", "t", 0, 1), ("home", "t", 1, 0)]
        with pytest.raises(PipelineError, match=r"'facts'.*only grows"):
            batches.writer.commit(batches.batch((FACTS, [("home", "t", 0, 1, -1)])))
        assert store.get("facts", ["t", 0, 1]) == {"page": "home", **dict(zip(ORIGIN, ("t", 0, 1), strict=True))}

    def test_values_come_back_in_their_declared_types(self, writer: StoreWriter, store: StoreReader) -> None:
        schema = pa.schema(
            [
                ("id", pa.int32()), ("yes", pa.bool_()), ("tiny", pa.int8()), ("half", pa.float32()), ("day", pa.date32()),
                ("at", TIME), ("local", pa.timestamp("us")), ("price", pa.decimal128(12, 2)), ("raw", pa.binary()),
                ("tags", pa.list_(pa.string())), ("place", pa.struct([("lat", pa.float64()), ("at", TIME)])),
                ("more", pa.map_(pa.string(), pa.int64())),
            ]
        )  # fmt: skip
        target = Target("types", schema, ("id",))
        whole = (
            1, True, -5, 0.1, date(2026, 2, 3), NOON, NOON.replace(tzinfo=None, microsecond=5), Decimal("12.30"), b"\0\xff",
            ["a", None], {"lat": math.inf, "at": NOON}, [("k", 1), ("ü", None)],
        )  # fmt: skip
        fence = writer.claim("types")
        writer.prepare("types", FINGERPRINT, [target])
        table = changes(target, (*whole, 1), (2, *[None] * 11, 1))
        assert writer.commit(Batch("c", 0, fence, changes={"types": table}))
        assert store.table("types").equals(table.drop_columns([WEIGHT]))
        assert store.get("types", [1]) == table.drop_columns([WEIGHT]).to_pylist()[0]

    def test_names_and_values_are_data_whatever_they_hold(self, writer: StoreWriter, store: StoreReader) -> None:
        odd, text = '100%s drop"; DROP TABLE x; --', "\\.\n\\N %s \t'\"\\ \r\n,;"
        target = Target(odd, pa.schema([("select", pa.string()), ("a b'", pa.string())]), ("select",))
        fence = writer.claim(odd)
        writer.prepare(odd, FINGERPRINT, [target])
        assert writer.commit(Batch("c'", 0, fence, changes={odd: changes(target, ("'; --", text, 1))}))
        assert store.get(odd, ["'; --"]) == {"select": "'; --", "a b'": text}
        assert rows(store, odd) == [("'; --", text)]

    # the ledger

    def test_a_page_is_some_rows_in_an_order(self, batches: Batches, store: StoreReader) -> None:
        amounts = {"ann": 2, "bob": 10, "Cat": 10, "dan": -1, "é": 3}
        batches.commit(TOTALS, *((name, n, n / 4, 1) for name, n in amounts.items()))

        def names(
            limit: int = 10,
            offset: int = 0,
            where: Sequence[tuple[Any, ...]] = (),
            order: dict[str, bool] | None = None,
        ) -> list[str]:
            conditions = tuple(Condition(*each) for each in where)
            found = store.page("totals", Page(limit, offset, conditions, tuple((order or {}).items())))
            assert found.schema == TOTALS.schema
            return [row[TOTALS.key[0]] for row in found.to_pylist()]

        key, n, real = TOTALS.schema.names
        assert names() == ["Cat", "ann", "bob", "dan", "é"]
        assert names(order={n: True}) == ["Cat", "bob", "é", "ann", "dan"]
        assert names(order={n: True, key: True}) == ["bob", "Cat", "é", "ann", "dan"]
        assert names(2, 1, order={real: False}) == ["ann", "é"]
        assert names(where=[(n, "=", "10")]) == ["Cat", "bob"]
        assert names(where=[(n, ">", "2"), (key, "<", "bob")]) == ["Cat"]
        assert names(where=[(key, "<>", "ann"), (real, "<=", "0.75")]) == ["dan", "é"]
        assert names(where=[(key, "=", "' OR 1=1 --")]) == []
        for column, value in (("nothing", "1"), ('n" OR 1=1 --', "1"), (n, "many"), (n, "1 OR 1")):
            with pytest.raises(ViewError):
                names(where=[(column, "=", value)])
        with pytest.raises(ViewError):
            names(order={"n; DROP TABLE totals": True})

    def test_a_page_of_a_view_without_a_key_counts_equal_rows_singly(
        self, batches: Batches, store: StoreReader
    ) -> None:
        batches.commit(BAG, ("a", 1.0, 2), ("b", 2.0, 3))
        pages = [store.page("bag", Page(2, offset)).to_pylist() for offset in (0, 2, 4)]
        assert [next(iter(row.values())) for page in pages for row in page] == ["a", "a", "b", "b", "b"]

    def test_a_page_has_every_type_in_its_order(self, writer: StoreWriter, store: StoreReader) -> None:
        target = Target(
            "typed",
            pa.schema([("id", pa.int64()), ("at", TIME), ("day", pa.date32()), ("price", pa.decimal128(12, 2)), ("yes", pa.bool_())]),
            ("id",),
        )  # fmt: skip
        rows = [
            (1, datetime(2026, 1, 1, 12, tzinfo=UTC), date(2026, 1, 1), Decimal("9.50"), True),
            (2, datetime(2026, 1, 1, 12, 0, 0, 500, tzinfo=UTC), date(2026, 1, 3), Decimal("10.00"), False),
            (3, None, None, None, None),
        ]
        fence = writer.claim(PIPELINE)
        writer.prepare(PIPELINE, FINGERPRINT, [target])
        writer.commit(Batch("c1", 0, fence, changes={"typed": changes(target, *((*row, 1) for row in rows))}))

        def found(*where: Condition, order: tuple[tuple[str, bool], ...] = ()) -> list[int]:
            return [row["id"] for row in store.page("typed", Page(10, 0, where, order)).to_pylist()]

        for column in ("at", "day", "price"):
            assert found(order=((column, False),)) == [3, 1, 2]
            assert found(order=((column, True),)) == [2, 1, 3]
        assert found(Condition("price", ">", "9.75")) == found(Condition("price", "=", "10.00")) == [2]
        assert found(Condition("at", ">", "2026-01-01T12:00:00Z")) == found(Condition("day", ">=", "2026-01-02")) == [2]
        assert found(Condition("yes", "=", "true")) == [1]

    def test_the_ledger_tells_what_was_committed(self, batches: Batches, store: StoreReader) -> None:
        before = datetime.now(UTC)
        batches.commit(TOTALS, ("ann", 1, 1.0, 1))
        seen = counts(("t", 0, 5, 3, 1, 1, 0, 0, 0, 1, 2, NOON), ("t", 1, 2, 2, 0, 0, 0, 0, 0, 0, 0, None))
        batches.commit(
            TOTALS, ("bob", 1, 1.0, 1), offsets={"t": {0: 5, 1: 2}}, counts=seen, state={"rows": 7, "by": [1]}
        )
        last = batches.writer.last(PIPELINE)
        assert last is not None
        assert store.last(PIPELINE) == last
        assert (last.checkpoint, last.batch, last.fence) == ("c1", 1, batches.fence)
        assert store.last(PIPELINE) == last
        assert last.offsets == {"t": {0: 5, 1: 2}}
        assert (last.counts["records"], last.counts["admitted"], last.counts["heartbeats"]) == (7, 5, 2)
        assert last.state == {"rows": 7, "by": [1]}
        assert before <= last.committed_at <= datetime.now(UTC)
        assert [entry.batch for entry in batches.writer.entries(PIPELINE)] == [1, 0]
        assert [entry.batch for entry in batches.writer.entries(PIPELINE, 1)] == [1]
        info = store.views()[0]
        assert (info.pipeline, info.batch, info.updated) == (PIPELINE, 1, last.committed_at)

    def test_who_waits_for_a_position_goes_on_when_a_batch_reaches_it(
        self, batches: Batches, store: StoreReader
    ) -> None:
        with pytest.raises(ViewBehind, match=r"within 0\.05 s: t/1 at 0 of 3 \(3 behind\)"):
            wait_for(store, PIPELINE, {"t": {1: 3}}, 0.05)
        batches.commit(TOTALS, ("ann", 1, 1.0, 1), offsets={"t": {0: 5, 1: 2}})
        wait_for(store, PIPELINE, {"t": {0: 5, 1: 1}}, 0)
        with pytest.raises(ViewBehind, match=r"t/0 at 5 of 1,006 \(1,001 behind\), t/1 at 2 of 3 \(1 behind\)"):
            wait_for(store, PIPELINE, {"t": {0: 1006, 1: 3}}, 0.05)
        with pytest.raises(ViewError, match="pipeline shop does not read topic carts; it reads t"):
            wait_for(store, PIPELINE, {"carts": {0: 1}}, 60)
        seen: list[int] = []
        waiting = threading.Thread(
            target=lambda: (wait_for(store, PIPELINE, {"t": {1: 3}}, 60), seen.append(store.table("totals").num_rows))
        )
        waiting.start()
        batches.commit(TOTALS, ("bob", 1, 1.0, 1), offsets={"t": {0: 5, 1: 2}})
        assert waiting.is_alive()
        batches.commit(TOTALS, ("eve", 1, 1.0, 1), offsets={"t": {0: 5, 1: 3}})
        waiting.join(30)
        assert seen == [3]

    def test_a_batch_that_is_there_already_writes_nothing(self, batches: Batches, store: StoreReader) -> None:
        letter = rejects(("t", 0, 3, NOON, NOON, "late", "1 s"))
        seen = counts(("t", 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, None))
        first = batches.batch((BAG, [("home", 1.0, 1)]), rejects=letter, counts=seen)
        assert batches.writer.commit(first)
        batches.next += 1
        batches.commit(BAG, ("home", 2.0, 1))
        ledger = batches.writer.entries(PIPELINE)
        assert not batches.writer.commit(batches.batch((BAG, [("home", 2.0, 1)]), batch=1))
        assert rows(store, "bag") == [("home", 1.0), ("home", 2.0)]
        assert batches.writer.entries(PIPELINE) == ledger
        assert store.dead_letters().num_rows == 1
        assert store.admission().to_pylist()[0]["records"] == 1

    @pytest.mark.parametrize(
        ("batch", "more", "match"),
        [
            (
                1,
                {"offsets": {"t": {0: 20, 1: 5}}},
                "batch 1 of checkpoint c1 comes again, but batch 2 is stored already",
            ),
            (2, {"offsets": {"t": {0: 31, 1: 5}}}, "batch 2 .* ends at t/0 offset 31; the stored one at 30"),
            (
                2,
                {"offsets": {"t": {0: 30, 1: 5}}, "state": {"planned": {"t": {"0": 29, "1": 6}}}},
                "offset 29; the stored one at 30",
            ),
        ],
        ids=["below the newest", "larger", "planned otherwise"],
    )
    def test_a_batch_that_comes_again_as_another_is_an_error(
        self, batches: Batches, store: StoreReader, batch: int, more: dict[str, Any], match: str
    ) -> None:
        for number in range(3):
            at = {"t": {0: 10 * (number + 1), 1: 5}}
            planned = {"planned": {"t": {"0": 10 * (number + 1), "1": 6}}}
            batches.commit(BAG, ("home", float(number), 1), offsets=at, state=planned)
        ledger = batches.writer.entries(PIPELINE)
        more = {"state": ledger[0].state, **more}
        with pytest.raises(CheckpointMismatch, match=match) as caught:
            batches.writer.commit(batches.batch((BAG, [("lost", 1.0, 1)]), batch=batch, **more))
        assert "--rebuild" in caught.value.hint
        assert batches.writer.entries(PIPELINE) == ledger
        assert len(rows(store, "bag")) == 3
        same = batches.batch(
            (BAG, [("home", 2.0, 1)]), batch=2, offsets={"t": {0: 30, 1: 5, 2: 0}}, state=ledger[0].state
        )
        assert not batches.writer.commit(same)  # a partition that came since is no difference

    def test_a_skipped_batch_is_an_error_and_so_is_a_store_that_lost_them_all(
        self, batches: Batches, store: StoreReader
    ) -> None:
        for batch in (0, 1):
            with pytest.raises(PipelineError, match=f"found batch {batch + 1} of .* c1, expected {batch}") as caught:
                batches.writer.commit(batches.batch((BAG, [("home", 1.0, 1)]), batch=batch + 1))
            assert "--rebuild" in caught.value.hint
            assert len(rows(store, "bag")) == batch
            batches.commit(BAG, ("home", 1.0, 1))

    def test_a_new_checkpoint_counts_its_own_batches(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(BAG, ("home", 1.0, 1))
        assert batches.writer.commit(batches.batch((BAG, [("home", 1.0, 1)]), checkpoint="c2", batch=0))
        assert not batches.writer.commit(batches.batch((BAG, [("home", 1.0, 1)]), checkpoint="c1", batch=0))
        last = batches.writer.last(PIPELINE)
        assert last is not None
        assert (last.checkpoint, last.batch) == ("c2", 0)
        assert len(rows(store, "bag")) == 2

    def test_changes_of_a_view_that_is_not_the_pipelines_are_an_error(self, batches: Batches) -> None:
        with pytest.raises(PipelineError, match="'nowhere'"):
            batches.writer.commit(Batch("c1", 0, batches.fence, changes={"nowhere": changes(BAG, ("x", 1.0, 1))}))
        assert batches.writer.last(PIPELINE) is None

    def test_changes_in_another_shape_are_an_error_that_names_the_column(self, batches: Batches) -> None:
        table = changes(BAG, ("x", 1.0, 1))
        for wrong in (
            table.drop_columns(["score"]),
            table.set_column(1, "score", pa.array(["abc"])),
        ):
            with pytest.raises(PipelineError, match=r"'bag'.*score"):
                batches.writer.commit(Batch("c1", 0, batches.fence, changes={"bag": wrong}))
        with pytest.raises(PipelineError, match="_weight"):
            batches.writer.commit(Batch("c1", 0, batches.fence, changes={"bag": table.drop_columns([WEIGHT])}))
        assert batches.writer.last(PIPELINE) is None

    # rows that a store cannot hold

    @pytest.fixture
    def odd(self, writer: StoreWriter) -> Callable[..., object]:
        """Commits changes of the odd views, one batch after the other."""
        fence, number = writer.claim("odd"), itertools.count()
        writer.prepare("odd", FINGERPRINT, [ODD, ODD_BAG, ODD_FACTS])
        return lambda table, target=ODD: writer.commit(Batch("c", next(number), fence, changes={target.name: table}))

    def test_a_row_is_refused_exactly_if_the_store_would_stop(
        self, writer: StoreWriter, judge: Judge | None, refusable: set[str]
    ) -> None:
        fence = writer.claim("odd")
        writer.prepare("odd", FINGERPRINT, [ODD, ODD_BAG])
        number = 0
        for target, name in itertools.product((ODD, ODD_BAG), PLANTED):
            table = planted(target, (name, 1))
            _, refused = accept(target, table, judge)
            assert bool(refused) == (name in refusable and not (target is ODD_BAG and name == LETTERS)), name
            batch = Batch("c", number, fence, changes={target.name: table})
            if refused:
                with pytest.raises((ViewError, PipelineError)):
                    writer.commit(batch)
            else:
                assert writer.commit(batch), name
                number += 1

    def test_a_view_holds_the_rows_that_are_not_refused(
        self, odd: Callable[..., None], store: StoreReader, judge: Judge | None, refusable: set[str]
    ) -> None:
        for target in (ODD, ODD_BAG, ODD_FACTS):
            every = planted(target, *((name, 1) for name in PLANTED))
            taken, refused = accept(target, every, judge)
            odd(taken, target)
            kept = [name for name in PLANTED if name not in refusable - ({LETTERS} if target is not ODD else set())]
            assert sorted(store.table(target.name)["id"].to_pylist()) == sorted(kept)
            assert len(refused) == len(PLANTED) - len(kept)
            assert all(each.row.startswith("id=") and each.why for each in refused)
            back = store.table(target.name).select(ODD.schema.names).sort_by("id")
            wanted = planted(ODD, *((name, 1) for name in kept)).drop_columns([WEIGHT]).sort_by("id")
            assert back.equals(wanted)
        again, none = accept(ODD, planted(ODD, ("plain", 1), ("numbers", -1)), judge)
        assert (again.num_rows, none) == (2, [])

    @pytest.mark.parametrize("style", ["both", "upsert"])
    def test_a_refused_row_takes_the_place_of_the_row_before_and_is_taken_back_silently(
        self, odd: Callable[..., None], store: StoreReader, judge: Judge | None, refusable: set[str], style: str
    ) -> None:
        def row(text: str, weight: int) -> Change:
            return ("ann", text, *[None] * 9, weight)

        def commit(*each: Change) -> int:
            taken, refused = accept(ODD, changes(ODD, *each), judge)
            odd(taken)
            return len(refused)

        bad = int("NUL in text" in refusable)
        before = [] if style == "upsert" else [row("fine", -1)]
        assert commit(row("fine", 1), ("bob", "stays", *[None] * 9, 1)) == 0
        assert commit(*before, row("a\0", 1)) == bad
        assert [each["text"] for each in store.table("odd").to_pylist()] == ["a\0"] * (1 - bad) + ["stays"]
        assert commit(row("a\0", -1), row("b\0", 1)) == bad
        assert commit(row("b\0", -1), row("better", 1)) == 0
        assert [each["text"] for each in store.table("odd").to_pylist()] == ["better", "stays"]
        assert commit(row("better", -1), row("c\0", 1), row("c\0", -1)) == 0
        assert [each["id"] for each in store.table("odd").to_pylist()] == ["bob"]
        assert commit(row("c\0", 1), row("c\0", -1), row(None, 1)) == 0  # type: ignore[arg-type]
        assert store.get("odd", ["ann"]) is not None

    def test_refused_rows_are_counted_for_their_view_alone(self, batches: Batches, store: StoreReader) -> None:
        letters = [(f"view {view}", 0, 0, None, None, "refused", "why") for view in ("bag", "bag", "totals")]
        batches.commit(BAG, rejects=rejects(*letters, ("bag", 0, 1, None, None, "late", None)))
        assert {view.name: view.refused for view in store.views()} == {"totals": 1, "pairs": 0, "bag": 2, "facts": 0}

    # what admission saw

    def test_dead_letters_are_kept_with_their_place_and_reason(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(
            BAG, rejects=rejects(("t", 0, 3, NOON, NOON, "late", "1 s"), ("t", 1, 4, None, NOON, "malformed", None))
        )
        batches.commit(BAG, rejects=rejects(("u", 0, 9, NOON, NOON, "future", "2099")))
        letters = store.dead_letters(PIPELINE).to_pylist()
        assert [(each["batch"], each["topic"], each["partition"], each["offset"]) for each in letters] == [
            (1, "u", 0, 9),
            (0, "t", 1, 4),
            (0, "t", 0, 3),
        ]
        assert letters[1]["time"] is None
        assert letters[2]["time"] == NOON
        assert [each["offset"] for each in store.dead_letters(reason="malformed").to_pylist()] == [4]
        assert store.dead_letters(limit=2).num_rows == 2
        assert store.dead_letters("other").num_rows == 0

    def test_admission_counts_add_up_over_all_batches(self, batches: Batches, store: StoreReader) -> None:
        later = NOON.replace(hour=13)
        batches.commit(
            BAG, counts=counts(("t", 0, 5, 3, 1, 1, 0, 0, 0, 1, 0, NOON), ("t", 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, None))
        )
        batches.commit(BAG, counts=counts(("t", 0, 6, 1, 0, 0, 2, 1, 2, 0, 3, later)))
        assert [tuple(row.values()) for row in store.admission(PIPELINE).to_pylist()] == [
            (PIPELINE, "t", 0, 11, 4, 1, 1, 2, 1, 2, 1, 3, later),
            (PIPELINE, "t", 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, None),
        ]
        assert store.admission("other").num_rows == 0

    def test_hidden_rows_are_shown_to_nobody_until_they_are_hidden_no_longer(
        self, batches: Batches, store: StoreReader
    ) -> None:
        batches.commit(BAG, ("home", 1.0, 1), ("it's", 2.0, 1))
        hidden = [Hidden("a", "bag", "page", "it's"), Hidden("b", "bag", "page", "none"), Hidden("b", "gone", "x", "y")]
        assert store.hidden() == []
        batches.writer.hide(hidden)
        batches.writer.hide(hidden[:1])
        assert store.hidden() == hidden
        shown = Hiding(store)
        assert rows(shown, "bag") == [("home", 1.0)]
        assert shown.query("SELECT page FROM bag").rows == [("home",)]
        assert shown.page("bag", Page(10)).column("page").to_pylist() == ["home"]
        assert len(rows(store, "bag")) == len(store.query("SELECT page FROM bag").rows) == 2
        batches.commit(BAG, ("it's", 2.0, -1), ("it's", 3.0, 1))
        assert len(rows(store, "bag")) == 2, "what a batch does is done to all rows"
        batches.writer.unhide(["a"])
        assert store.hidden() == hidden[1:]
        assert len(rows(shown, "bag")) == 2
        batches.writer.unhide(["b", "c"])
        assert store.hidden() == []

    # definitions

    def test_the_same_definition_is_prepared_again_and_goes_on(
        self, batches: Batches, again: Callable[[], StoreWriter], store: StoreReader
    ) -> None:
        batches.commit(BAG, ("home", 1.0, 1))
        batches.writer.release()
        with again() as other:
            fence = other.claim(PIPELINE)
            never_null = Target("bag", pa.schema([pa.field(f.name, f.type, nullable=False) for f in BAG.schema]))
            other.prepare(PIPELINE, FINGERPRINT, [FACTS, never_null, PAIRS, TOTALS])
            assert other.commit(batches.batch((BAG, [("home", 2.0, 1)]), fence=fence))
        assert rows(store, "bag") == [("home", 1.0), ("home", 2.0)]

    @pytest.mark.parametrize(
        ("fingerprint", "targets", "found"),
        [
            ("beef", TARGETS, "fingerprint is beef, the stored one f00d"),
            (FINGERPRINT, TARGETS[1:], "'totals' is stored but no longer defined"),
            (FINGERPRINT, [*TARGETS, Target("new", BAG.schema)], "'new' is new"),
            (
                FINGERPRINT,
                [TOTALS, PAIRS, BAG, Target("facts", FACTS.schema)],
                "'facts' is stored by the key of its origin",
            ),
            (
                FINGERPRINT,
                [TOTALS, Target("pairs", PAIRS.schema, ("a",)), BAG, FACTS],
                r"key \(a, b\), now it is \(a\)",
            ),
            (
                FINGERPRINT,
                [TOTALS, PAIRS, Target("bag", pa.schema([("page", pa.string()), ("score", pa.int64())])), FACTS],
                "'bag' is stored as .*score double.*now .*score int64",
            ),
        ],
    )
    def test_another_definition_is_refused(
        self, batches: Batches, fingerprint: str, targets: list[Target], found: str
    ) -> None:
        with pytest.raises(CheckpointMismatch, match=found) as caught:
            batches.writer.prepare(PIPELINE, fingerprint, targets)
        assert "start over" in caught.value.hint

    def test_a_view_of_another_pipeline_is_not_overwritten(
        self, batches: Batches, again: Callable[[], StoreWriter]
    ) -> None:
        with again() as other:
            other.claim("second")
            with pytest.raises(ViewError, match="'bag' is already kept here, by pipeline 'shop'"):
                other.prepare("second", FINGERPRINT, [Target("bag", BAG.schema)])

    @pytest.mark.parametrize(
        ("target", "found"),
        [
            (Target("millstream_ledger", BAG.schema), "reserved"),
            (Target("v", pa.schema([("_weight", pa.int64())])), "_weight is reserved"),
            (Target("v", pa.schema([("a", pa.int64())]), ("b",)), "no column 'b'"),
            (Target("v", pa.schema([("a", pa.int64())]), append=True), "no column '_topic'"),
            (Target("v", pa.schema([("a", pa.int64()), ("A", pa.int64())])), "two columns called 'a'"),
            (Target("v", pa.schema([("a", pa.uint64())])), "column 'a': values of type uint64"),
            (
                Target("v", pa.schema([("a", pa.list_(pa.timestamp("ns")))])),
                r"column 'a': values of type timestamp\[ns\]",
            ),
        ],
    )
    def test_a_view_that_cannot_be_kept_is_refused_before_anything_is_made(
        self, writer: StoreWriter, store: StoreReader, target: Target, found: str
    ) -> None:
        writer.claim(PIPELINE)
        with pytest.raises(ViewError, match=found):
            writer.prepare(PIPELINE, FINGERPRINT, [BAG, target])
        assert store.views() == []

    def test_heartbeats_are_kept_with_their_batch_and_outlive_the_views(
        self, batches: Batches, again: Callable[[], StoreWriter]
    ) -> None:
        other = BEAT._replace(topic="a", time=-(2**63) + 1, appended=2**63 - 1)
        batches.commit(BAG, beats=[BEAT])
        batch = batches.batch(beats=[other])
        assert batches.writer.commit(batch)
        assert not batches.writer.commit(batch)
        with pytest.raises(TakenOver):
            batches.writer.commit(batches.batch(batch=2, fence=batches.fence - 1, beats=[BEAT._replace(time=18)]))
        with again() as reader:
            assert reader.heartbeats(PIPELINE) == [Told("c1", 1, other), Told("c1", 0, BEAT)]
            assert reader.heartbeats("else") == []
        batches.writer.forget(PIPELINE)
        assert [told.beat for told in batches.writer.heartbeats(PIPELINE)] == [other, BEAT]

    def test_a_heartbeat_that_comes_again_is_of_the_later_batch(self, batches: Batches) -> None:
        batches.commit(BAG, beats=[BEAT])
        batches.commit(BAG, beats=[BEAT, BEAT._replace(time=18)])
        assert batches.writer.heartbeats(PIPELINE) == [Told("c1", 1, BEAT), Told("c1", 1, BEAT._replace(time=18))]

    def test_a_forgotten_pipeline_can_be_made_anew(self, batches: Batches, store: StoreReader) -> None:
        letter = rejects(("t", 0, 3, NOON, NOON, "late", "1 s"))
        batches.commit(BAG, ("home", 1.0, 1), rejects=letter, counts=counts(("t", 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, None)))
        batches.writer.forget(PIPELINE)
        assert store.views() == []
        assert batches.writer.last(PIPELINE) is None
        assert store.dead_letters().num_rows == store.admission().num_rows == 0
        with pytest.raises(PipelineError, match="prepare"):
            batches.writer.commit(batches.batch((BAG, [])))
        batches.writer.prepare(PIPELINE, "beef", [BAG])
        batches.next = 0
        batches.commit(BAG, ("home", 2.0, 1))
        assert rows(store, "bag") == [("home", 2.0)]

    def test_a_pipeline_that_another_runs_is_not_forgotten(
        self, batches: Batches, again: Callable[[], StoreWriter], store: StoreReader
    ) -> None:
        batches.commit(BAG, ("home", 1.0, 1))
        with again() as other, pytest.raises(AlreadyRunning):
            other.forget(PIPELINE)
        assert rows(store, "bag") == [("home", 1.0)]

    def test_who_still_believes_to_hold_a_forgotten_pipeline_writes_nothing(
        self, batches: Batches, again: Callable[[], StoreWriter], store: StoreReader
    ) -> None:
        with again() as other:
            other.claim(PIPELINE, takeover=True)
            other.release()
            other.forget(PIPELINE)
        with pytest.raises(TakenOver):
            batches.writer.commit(batches.batch((BAG, [("home", 1.0, 1)])))
        assert store.views() == []

    # leases and fences

    def test_a_second_claim_is_refused_while_the_first_lives(
        self, batches: Batches, again: Callable[[], StoreWriter]
    ) -> None:
        with (
            again() as other,
            pytest.raises(AlreadyRunning, match=r"'shop' is already running on .*, process \d+") as caught,
        ):
            other.claim(PIPELINE)
        assert "--takeover" in caught.value.hint

    def test_pipelines_do_not_stand_in_each_others_way(
        self, batches: Batches, again: Callable[[], StoreWriter]
    ) -> None:
        with again() as other:
            assert other.claim("second") == 1

    def test_every_claim_raises_the_fence(self, writer: StoreWriter, again: Callable[[], StoreWriter]) -> None:
        assert writer.claim(PIPELINE) == 1
        assert writer.claim(PIPELINE) == 2
        writer.release()
        with again() as other:
            assert other.claim(PIPELINE) == 3
            assert writer.claim(PIPELINE, takeover=True) == 4

    def test_a_zombie_with_an_older_fence_writes_nothing(
        self, batches: Batches, again: Callable[[], StoreWriter], store: StoreReader
    ) -> None:
        done = batches.batch((BAG, [("home", 1.0, 1)]))
        assert batches.writer.commit(done)
        with again() as other:
            fence = other.claim(PIPELINE, takeover=True)
            other.prepare(PIPELINE, FINGERPRINT, TARGETS)
            for attempt in (
                lambda: batches.writer.commit(batches.batch((BAG, [("zombie", 1.0, 1)]), batch=1)),
                lambda: batches.writer.commit(done),  # there already, but it must learn that it is a zombie
                lambda: batches.writer.prepare(PIPELINE, FINGERPRINT, TARGETS),
                lambda: batches.writer.forget(PIPELINE),
                batches.writer.renew,
            ):
                with pytest.raises(TakenOver, match="'shop' has been taken over"):
                    attempt()
            assert other.commit(batches.batch((BAG, [("heir", 1.0, 1)]), batch=1, fence=fence))
            batches.writer.release()  # not ours any more: must not end the other's
            other.renew()
            with again() as third, pytest.raises(AlreadyRunning):
                third.claim(PIPELINE)
        assert rows(store, "bag") == [("heir", 1.0), ("home", 1.0)]

    def test_a_batch_of_the_past_with_the_fence_of_the_past_is_refused_in_the_same_store(
        self, batches: Batches
    ) -> None:
        old = batches.batch((BAG, [("home", 1.0, 1)]))
        batches.writer.claim(PIPELINE)
        batches.writer.prepare(PIPELINE, FINGERPRINT, TARGETS)
        with pytest.raises(TakenOver):
            batches.writer.commit(old)
        assert batches.writer.last(PIPELINE) is None

    @pytest.mark.parametrize("call", ["renew", "prepare", "commit"])
    def test_nothing_is_written_without_a_claim(self, writer: StoreWriter, call: str) -> None:
        arguments = {"renew": (), "prepare": (PIPELINE, FINGERPRINT, TARGETS), "commit": (Batch("c", 0, 1),)}[call]
        with pytest.raises(PipelineError, match="claim"):
            getattr(writer, call)(*arguments)
        writer.release()  # nothing to end, no error

    # reading

    def test_an_unknown_view_is_named_in_the_error(self, batches: Batches, store: StoreReader) -> None:
        for ask in (lambda: store.table("nowhere"), lambda: store.get("nowhere", [1])):
            with pytest.raises(UnknownView, match="no view 'nowhere'; found bag, facts, pairs, totals"):
                ask()

    def test_a_key_that_does_not_fit_is_an_error(self, batches: Batches, store: StoreReader) -> None:
        with pytest.raises(ViewError, match="found a key of 1, expected 2: a, b"):
            store.get("pairs", [1])
        with pytest.raises(ViewError, match="'bag' has no key"):
            store.get("bag", ["home"])
        with pytest.raises(ViewError, match="column a: found 'x', expected int64"):
            store.get("pairs", ["x", "y"])

    def test_a_key_may_be_given_as_text(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(PAIRS, (7, "x", 1, 1))
        assert store.get("pairs", ["7", "x"]) == {"a": 7, "b": "x", "n": 1}

    def test_views_are_queried_with_sql(self, batches: Batches, store: StoreReader) -> None:
        batches.commit(TOTALS, ("ann", 1, 2.0, 1), ("bob", 2, 3.0, 1))
        answer = store.query("SELECT count(*) AS people, sum(n) AS n FROM totals")
        assert answer == (("people", "n"), [(2, 3)])
        assert store.query("SELECT n FROM totals WHERE n > 5") == (("n",), [])

    @pytest.mark.parametrize(
        "sql", ["DELETE FROM totals", "UPDATE totals SET n = 9", "DROP TABLE totals", "CREATE TABLE mine (x INTEGER)"]
    )
    def test_a_statement_that_writes_is_refused(self, batches: Batches, store: StoreReader, sql: str) -> None:
        batches.commit(TOTALS, ("ann", 1, 2.0, 1))
        with pytest.raises(ViewError, match="only statements that read"):
            store.query(sql)
        assert rows(store, "totals") == [("ann", 1, 2.0)]

    def test_a_query_that_does_not_run_is_a_clear_error(self, batches: Batches, store: StoreReader) -> None:
        for wrong in ("SELEC 1", "SELECT * FROM nowhere", "", "SELECT 1; SELECT 2"):
            with pytest.raises(ViewError):
                store.query(wrong)

    def test_what_is_said_of_a_view_is_of_one_moment(
        self, batches: Batches, again_store: Callable[[], StoreReader]
    ) -> None:
        batches.commit(BAG, ("home", 0.0, 1))
        wrong: list[object] = []
        done = threading.Event()

        def read() -> None:
            try:
                with again_store() as reader:
                    while not done.is_set():
                        (info,) = [view for view in reader.views() if view.name == "bag"]
                        if info.batch is None or info.rows != info.batch + 1:
                            wrong.append(info)
            except BaseException as error:
                wrong.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            for number in range(1, 80):
                batches.commit(BAG, ("home", float(number), 1))
        finally:
            done.set()
            thread.join(60)
        assert wrong == []

    def test_a_reader_sees_whole_batches_only(
        self, writer: StoreWriter, again_store: Callable[[], StoreReader]
    ) -> None:
        # The bank: money moves between two views and between accounts; in every snapshot the sum is the same.
        left = Target("left_side", pa.schema([("account", pa.int64()), ("money", pa.int64())]), ("account",))
        right = Target("right_side", left.schema, ("account",))
        fence = writer.claim("bank")
        writer.prepare("bank", FINGERPRINT, [left, right])
        accounts = range(50)

        def commit(number: int, money: dict[str, list[int]]) -> None:
            each = {
                target.name: changes(target, *((a, money[target.name][a], 1) for a in accounts))
                for target in (left, right)
            }
            assert writer.commit(Batch("c", number, fence, changes=each))

        money = {"left_side": [100] * 50, "right_side": [0] * 50}
        commit(0, money)
        sums: list[tuple[Any, ...]] = []
        wrong: list[BaseException] = []
        done = threading.Event()

        def read() -> None:
            try:
                with again_store() as reader:
                    while not done.is_set() or len(sums) < 10:
                        answer = reader.query(
                            "SELECT (SELECT sum(money) FROM left_side) + (SELECT sum(money) FROM right_side)"
                        )
                        sums.append(answer.rows[0])
            except BaseException as error:
                wrong.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            for number in range(1, 60):
                for account in accounts:
                    moved = (number * 7 + account) % 13
                    money["left_side"][account] -= moved
                    money["right_side"][(account + number) % 50] += moved
                commit(number, money)
        finally:
            done.set()
            thread.join(60)
        assert wrong == []
        assert len(sums) >= 10
        assert set(sums) == {(5000,)}
