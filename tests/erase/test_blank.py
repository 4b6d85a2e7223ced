"""Blanking in place: what is left of a record, what becomes of it in a pipeline, and that its bytes are gone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream import Event, Pipeline
from millstream.erase.blank import Eraser, Wish, blank_topic, compacted_file
from millstream.erase.form import Subject, forms_of
from millstream.erase.pseudonym import Pseudonyms, new_key
from millstream.errors import BadEvent, PlanError
from millstream.log import open_log
from millstream.log.embedded.engine import SqliteLog
from millstream.relation.nodes import source_of
from millstream.testing import Trial
from millstream.window import tumbling

ANN, PSEUDONYMS = Subject("user", "ann"), Pseudonyms(new_key())
SCHEMA = '{"type": "record", "name": "c", "fields": [{"name": "user", "type": "string"}, {"name": "email", "type": "string"}, {"name": "n", "type": "long"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}'


def shop(codec: Any = "json", late: Any = "drop", **options: Any) -> Pipeline:
    pipeline = Pipeline("shop", to="sqlite:views.db")
    clicks = pipeline.stream(
        "clicks", "user string, email string, n long, at timestamp", time="at", late=late, codec=codec, key="user",
        subject={"user": "user"}, personal="email", **options,
    )  # fmt: skip
    pipeline.view("all", clicks)
    pipeline.view("per_minute", clicks.group_by(tumbling("at", "1 minute")).agg(n="count(*)", total="sum(n)"))
    users = pipeline.table("users", "id string, name string", key="id", subject={"user": "id"}, personal=["name"])
    pipeline.view("names", users)
    pipeline.view(
        "named", clicks.select("user", "at").join(users, "user = id", as_of="at").select("user", "at", "name")
    )
    return pipeline


def eraser(pipeline: Pipeline, topic: str, *wishes: Wish) -> Eraser:
    forms = forms_of([source_of(each.node) for each in (*pipeline.streams.values(), *pipeline.tables.values())])
    return Eraser(forms[topic], wishes, PSEUDONYMS)


def erase(running: Trial, pipeline: Pipeline, *wishes: Wish) -> list[int]:
    log = running._engine.log
    return [blank_topic(log, topic, eraser(pipeline, topic, *wishes)) for topic in ("clicks", "users")]


def click(user: str, second: int, n: int = 1) -> dict[str, Any]:
    return {
        "user": user,
        "email": f"{user}@example.org",
        "n": n,
        "at": f"2026-01-01T12:{second // 60:02}:{second % 60:02}Z",
    }


CLICKS = [click("ann", 0), click("bob", 20), click("ann", 200), click("bob", 30), click("bob", 205), click("ann", 10)]


def told(running: Trial) -> dict[str, Any]:
    counts = running.counts("clicks")
    return {name: counts[name] for name in ("records", "admitted", "late", "malformed", "erased")}


def feed(running: Trial) -> None:
    running.feed("users", [{"id": "ann", "name": "Ann A"}, {"id": "bob", "name": "Bob B"}], at="2026-01-01T11:00:00Z")
    running.feed("clicks", CLICKS, at="2026-01-01T12:10:00Z")


@pytest.mark.parametrize("codec", ["json", "confluent-json"])
def test_who_is_forgotten_is_in_no_view_and_the_others_are_as_late_as_before(codec: str) -> None:
    with Trial(shop(codec)) as before:
        feed(before)
        assert told(before) == {"records": 6, "admitted": 4, "late": 2, "malformed": 0, "erased": 0}
        late = [each["offset"] for each in before.rejected("clicks")]
        all_rows = before.rows("all")
    pipeline = shop(codec)
    with Trial(pipeline) as running:
        with running.batch():
            feed(running)
            assert erase(running, pipeline, Wish(ANN)) == [3, 1]
            assert erase(running, pipeline, Wish(ANN)) == [0, 0], "what is blank already is not found again"
        # The newest event was Ann's: without its time Bob's event at second 30 would not be late any more.
        assert told(running) == {"records": 6, "admitted": 2, "late": 2, "malformed": 0, "erased": 2}
        assert [each["offset"] for each in running.rejected("clicks")] == late
        assert running.rows("all") == [row for row in all_rows if row["user"] == "bob"]
        assert [row["name"] for row in running.rows("named")] == ["Bob B", "Bob B"]
        assert [row["id"] for row in running.rows("names")] == ["bob"]
        assert running.counts("users")["erased"] == 1
        running.close()
        assert sum(row["n"] for row in running.rows("per_minute")) == 2


def test_late_records_of_somebody_who_is_forgotten_are_not_in_the_view_of_late_ones() -> None:
    pipeline = shop(late="route")
    with Trial(pipeline) as running:
        with running.batch():
            feed(running)
            erase(running, pipeline, Wish(ANN))
        assert [row["user"] for row in running.rows("clicks_late")] == ["bob"]
        assert told(running)["late"] == 2


def test_of_fields_that_are_forgotten_the_rows_stay() -> None:
    pipeline = shop()
    with Trial(pipeline) as running:
        with running.batch():
            feed(running)
            assert erase(running, pipeline, Wish(ANN, "fields")) == [3, 1]
        assert told(running) == {"records": 6, "admitted": 4, "late": 2, "malformed": 0, "erased": 0}
        rows = running.rows("all")
        mine = {row["user"] for row in rows} - {"bob"}
        assert len(mine) == 1, "all of them have one pseudonym"
        assert "ann" not in mine
        assert [row["email"] for row in rows if row["user"] in mine] == [None, None]
        assert {row["id"]: row["name"] for row in running.rows("names")} == {"bob": "Bob B", mine.pop(): None}


def test_a_record_that_does_not_decode_and_names_somebody_stays_malformed_without_its_bytes() -> None:
    pipeline = shop()
    with Trial(pipeline) as running:
        with running.batch():
            running.feed("clicks", [b'{"user": "ann", "n": oops', b"annabel", click("bob", 1)])
            assert erase(running, pipeline, Wish(ANN))[0] == 1
            assert running._engine.log.read("clicks", 0, 0)[0].value is None
        assert told(running) == {"records": 3, "admitted": 1, "late": 0, "malformed": 2, "erased": 0}


def test_an_expression_that_fails_on_nothing_does_not_fail_on_what_is_erased() -> None:
    def failing() -> Pipeline:
        pipeline = Pipeline("shop", to="sqlite:views.db")
        clicks = pipeline.stream("clicks", "user string, n long, at timestamp", time="at", subject={"user": "user"})
        pipeline.view("shares", clicks.select("user", "at", "10 / coalesce(n, 0) AS share"))
        return pipeline

    pipeline = failing()
    with Trial(pipeline) as running:
        with running.batch():
            running.feed("clicks", [{"user": "ann", "n": 5, "at": "2026-01-01T12:00:00Z"}])
            running.feed("clicks", [{"user": "bob", "n": 5, "at": "2026-01-01T12:00:00Z"}])
            blank_topic(running._engine.log, "clicks", eraser(pipeline, "clicks", Wish(ANN)))
        assert (told(running)["erased"], told(running)["malformed"]) == (1, 0)
        assert [row["share"] for row in running.rows("shares")] == [2.0]


def test_numbers_of_producers_go_on_behind_erased_records() -> None:
    pipeline = shop(sequence=("user", "n"))
    events = [click("ann", 0, 5), click("bob", 1, 7), click("ann", 2, 5), click("bob", 3, 7), click("bob", 4, 8)]
    with Trial(pipeline) as running:
        with running.batch():
            running.feed("clicks", events)
            erase(running, pipeline, Wish(ANN))
            assert "ann" not in str(running._engine.log.read("clicks", 0, 0))
        counts = running.counts("clicks")
        assert (counts["admitted"], counts["duplicate"], counts["erased"]) == (2, 2, 1)


def log_of(folder: Path, codec: str, values: Sequence[tuple[bytes | None, bytes | None]]) -> SqliteLog:
    log = SqliteLog(folder / "log.db")
    log.create_topic("clicks")
    log.append("clicks", [Event(value, key=key, headers=(("ip", b"10.0.0.1"),)) for key, value in values])
    return log


def test_place_times_and_what_admission_needs_stay(tmp_path: Path) -> None:
    value = json.dumps(click("ann", 7) | {"more": {"of": "ann"}}).encode()
    with log_of(
        tmp_path, "json", [(b"ann", value), (b"bob", json.dumps(click("bob", 8)).encode()), (b"ann", value)]
    ) as log:
        before = log.read("clicks", 0, 0)
        assert blank_topic(log, "clicks", eraser(shop(), "clicks", Wish(ANN))) == 2
        after = log.read("clicks", 0, 0)
        assert after[1] == before[1]
        for old, new in zip(before, after, strict=True):
            assert (old.offset, old.partition, old.timestamp, old.appended) == (
                new.offset, new.partition, new.timestamp, new.appended,
            )  # fmt: skip
        assert after[0].key == after[2].key, "equal keys have one pseudonym, so that compaction goes on"
        assert json.loads(after[0].value or b"") == {"millstream.erased": True, "at": "2026-01-01T12:00:07Z"}
        assert after[0].headers == (("millstream.erased", b"1"),)
        with log.store.read() as db:
            size = db.execute("SELECT bytes FROM partition").get
            real = db.execute(
                "SELECT sum(ifnull(length(key), 0) + length(value) + ifnull(length(headers), 0)) FROM records_1_0"
            ).get
        assert size == real


def test_of_a_record_that_nobody_could_use_nothing_stays_but_its_place(tmp_path: Path) -> None:
    rows = [(b"ann", json.dumps(click("ann", second)).encode()) for second in (1, 2)]
    with log_of(tmp_path, "json", rows) as log:
        blank_topic(log, "clicks", replace(eraser(shop(), "clicks", Wish(ANN)), unjudged=frozenset({"clicks/0/1"})))
        assert [record.value is None for record in log.read("clicks", 0, 0)] == [False, True]


def test_whole_numbers_are_one_however_they_are_written(tmp_path: Path) -> None:
    pipeline = Pipeline("numbers")
    pipeline.stream("clicks", "id long", subject={"user": "id"})
    rows = [(None, b'{"id": %s}' % each) for each in (b"7", b"7.0", b"70e-1", b'"7"', b"77", b"7.5", b"null")]
    with log_of(tmp_path, "json", rows) as log:
        assert blank_topic(log, "clicks", eraser(pipeline, "clicks", Wish(Subject("user", "7")))) == 4


def test_names_in_escapes_are_found(tmp_path: Path) -> None:
    escaped = rb'{"user": "\u0061nn", "at": "2026-01-01T12:00:00Z"}'
    with log_of(tmp_path, "json", [(None, escaped)]) as log:
        assert blank_topic(log, "clicks", eraser(shop(), "clicks", Wish(ANN))) == 1


def test_avro_keeps_its_schema(tmp_path: Path) -> None:
    from millstream.codec import Avro

    codec = Avro(json.loads(SCHEMA))
    row = {"user": "ann", "email": "ann@example.org", "n": 3, "at": 1_767_268_800_000_000}
    with log_of(tmp_path, "avro", [(b"ann", codec.encode(row))]) as log:
        assert blank_topic(log, "clicks", eraser(shop(codec=SCHEMA), "clicks", Wish(ANN))) == 1
        (record,) = log.read("clicks", 0, 0)
        left = codec.decode(record.value or b"")
        assert (left["user"], left["email"], left["n"]) == ("", "", 0)
        assert left["at"] == codec.decode(codec.encode(row))["at"]


def test_the_bytes_are_gone_from_the_file_and_its_free_pages(tmp_path: Path) -> None:
    values = [(b"ann", json.dumps(click("ann", n % 60)).encode()) for n in range(500)]
    with log_of(tmp_path, "json", values) as log:
        log.create_topic("old")
        log.append("old", [Event(b"ann@example.org of a topic that was deleted" * 20) for _ in range(100)])
        log.delete_topic("old")  # its pages are free now, and not overwritten
        blank_topic(log, "clicks", eraser(shop(), "clicks", Wish(ANN)))
        left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert b"ann@example.org" in left, "free pages and the write-ahead log still have them"
        compacted_file(log.store, "log")
        left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        assert b"ann" not in left
    with open_log(f"sqlite:{tmp_path / 'log.db'}", create=False) as log:
        assert len(log.read("clicks", 0, 0)) == 500


def test_nobody_appends_what_looks_erased(tmp_path: Path) -> None:
    with log_of(tmp_path, "json", []) as log, pytest.raises(BadEvent, match="reserved for erased records"):
        log.append("clicks", [Event(b"{}", key=b"millstream.erased." + b"0" * 32)])


def test_a_time_that_another_definition_calls_personal_is_refused() -> None:
    one, other = Pipeline("one"), Pipeline("other")
    first = one.stream("clicks", "user string, at timestamp", time="at", subject={"user": "user"})
    second = other.stream("clicks", "user string, at timestamp", subject={"user": "user"}, personal="at")
    with pytest.raises(PlanError, match="takes its time or its number from column at, which is personal in"):
        forms_of([source_of(first.node), source_of(second.node)])
