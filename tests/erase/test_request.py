"""Requests: hidden at once wherever views and topics are read by us, listed, taken back, and in an audit log that shows changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner

from millstream import Event, Pipeline
from millstream.cli import cli
from millstream.erase import audit
from millstream.erase.form import Subject
from millstream.erase.register import Register
from millstream.erase.request import register_of, request, subject_of, withdraw
from millstream.erase.trace import subject_columns
from millstream.errors import AlreadyErasing, ConfigError, EraseError, NotSupported
from millstream.log import open_log
from millstream.log.embedded.engine import SqliteLog
from millstream.store import Batch, Target, open_reader, open_writer
from millstream.store.contract import REJECTS, WEIGHT, Hidden

FILE = """
from millstream import Pipeline

shop = Pipeline("shop", log="sqlite:{folder}/log.db", to="{to}")
orders = shop.stream("orders", "user_id long, email string, amount double", subject={{"user": "user_id"}}, personal=["email"])
shop.view("by_user", orders.group_by("user_id AS who").agg(n="count(*)"))
shop.view("total", orders.group_by().agg(n="count(*)"))
"""
ANN = Subject("user", "7")


def fill(pipeline: Pipeline) -> None:
    """What a run would have written."""
    with open_writer(pipeline.to) as writer:
        fence = writer.claim("shop")
        types = {"by_user": {"who": pl.Int64, "n": pl.Int64}, "total": {"n": pl.Int64}}
        empty = {name: pl.DataFrame(schema=each).to_arrow() for name, each in types.items()}
        targets = [Target("by_user", empty["by_user"].schema, ("who",)), Target("total", empty["total"].schema)]
        writer.prepare("shop", "f", targets)
        users = pl.DataFrame(
            {"who": [7, 8, None], "n": [2, 1, 5], WEIGHT: [1, 1, 1]}, schema_overrides={"who": pl.Int64}
        )
        letters = [
            {"topic": "orders", "partition": 0, "offset": n, "time": None, "append_time": None, "reason": "malformed", "detail": detail}
            for n, detail in enumerate(("not JSON: 7, a@b.org", "not JSON: x"))
        ]  # fmt: skip
        changes = {"by_user": users.to_arrow(), "total": pl.DataFrame({"n": [8], WEIGHT: [1]}).to_arrow()}
        writer.commit(Batch("c", 0, fence, {}, changes, pa.Table.from_pylist(letters, REJECTS)))
        writer.release()


def shop_in(folder: Path, to: str = "") -> tuple[Path, Pipeline]:
    file = folder / "shop.py"
    file.write_text(FILE.format(folder=folder, to=to or f"sqlite:{folder}/views.db"))
    from millstream.load import load_pipeline

    pipeline = load_pipeline(file)
    with SqliteLog(folder / "log.db") as log:
        log.create_topic("orders")
        rows = [{"user_id": 7, "email": "a@b.org"}, {"user_id": 8}, {"user_id": 7}]
        log.append("orders", [Event(json.dumps(row).encode()) for row in rows])
    fill(pipeline)
    return file, pipeline


def run(folder: Path, *arguments: str) -> Any:
    done = CliRunner().invoke(cli, ["--log", f"sqlite:{folder}/log.db", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_request_hides_at_once_what_people_read(tmp_path: Path) -> None:
    file, pipeline = shop_in(tmp_path)
    by_user = pipeline.views["by_user"]
    assert by_user.get(7) == {"who": 7, "n": 2}
    told = json.loads(run(tmp_path, "erase", "request", str(file), "--subject", "user=7", "--json"))
    assert (told["topics"], told["hidden"], told["may_show"]) == (["orders"], ["by_user"], ["total"])
    assert by_user.get(7) is None
    assert by_user.get(8) == {"who": 8, "n": 1}
    assert by_user.to_polars()["who"].to_list() == [None, 8]
    where = f"sqlite:{tmp_path}/views.db"
    shown = json.loads(run(tmp_path, "views", "show", "by_user", "--views", where, "--json"))
    assert [row["who"] for row in shown] == [None, 8]
    asked = run(tmp_path, "views", "query", "by_user", "SELECT sum(n) AS n FROM by_user", "--views", where, "--json")
    assert json.loads(asked) == [{"n": 6}]
    with open_reader(where, hides=True) as store:
        assert store.dead_letters()["detail"].to_pylist() == ["not JSON: x", None]
    consumed = run(tmp_path, "consume", "orders", "--json")
    assert [json.loads(line)["offset"] for line in consumed.splitlines()] == [1]
    assert "by_user" in pipeline.views["by_user"]._repr_html_()
    assert "<td>7</td>" not in pipeline.views["by_user"]._repr_html_()


def test_what_pipelines_read_of_their_own_is_not_hidden(tmp_path: Path) -> None:
    _, pipeline = shop_in(tmp_path)
    request([pipeline], ANN)
    with open_reader(pipeline.to) as store:
        assert store.table("by_user").num_rows == 3, "verify compares all rows with the log"
        assert store.hidden() != []


def test_a_request_that_is_taken_back_shows_all_again_and_forgets_the_name(tmp_path: Path) -> None:
    file, pipeline = shop_in(tmp_path)
    taken = request([pipeline], ANN).request
    assert request([pipeline], ANN).request == taken, "the same again is the same request"
    run(tmp_path, "erase", "withdraw", taken.id, str(file))
    assert pipeline.views["by_user"].get(7) is not None
    with open_reader(pipeline.to) as store:
        assert store.hidden() == []
    status = json.loads(run(tmp_path, "erase", "status", "--json"))
    (row,) = status["requests"]
    assert (row["name"], row["outcome"], row["digest"]) == ("", "withdrawn", taken.digest)
    assert status["audit"]["entries"] == 3
    with pytest.raises(ConfigError, match="is withdrawn already"):
        withdraw([pipeline], taken.id)


def test_names_are_gone_from_the_register_bytes_and_all(tmp_path: Path) -> None:
    _, pipeline = shop_in(tmp_path)
    pipeline.views.clear()
    text = Pipeline("text", log=pipeline.log, to=pipeline.to)
    text.stream("logins", "name string", subject={"login": "name"})
    with open_log(text.log) as log:
        log.create_topic("logins")
    taken = request([text], Subject("login", "canary-of-the-register")).request
    withdraw([text], taken.id)
    path = register_of(text.log)
    left = b"".join(each.read_bytes() for each in tmp_path.glob(f"{path.name}*"))
    assert len(left) > 1000
    assert b"canary" not in left
    assert path.stat().st_mode & 0o077 == 0


def test_the_audit_log_names_nobody_and_shows_what_was_changed(tmp_path: Path) -> None:
    _, pipeline = shop_in(tmp_path)
    head = request([pipeline], ANN).head
    request([pipeline], Subject("user", "8"), "fields")
    with SqliteLog(tmp_path / "log.db") as log:
        entries, last = audit.check(log)
        assert [(each.what, each.mode) for each in entries] == [("requested", "records"), ("requested", "fields")]
        assert (entries[0].before, entries[1].before) == (audit.BEGINNING, head)
        assert last != head
        values = [record.value or b"" for record in log.read(audit.TOPIC, 0, 0)]
        assert all(b'"7"' not in value and b'"8"' not in value for value in values)
        with Register(register_of(pipeline.log)) as register:
            assert entries[0].subject == register.digest(ANN)
        with log.store.write() as db:
            table = f"records_{db.execute('SELECT id FROM topic WHERE name = ?', (audit.TOPIC,)).get}_0"
            db.execute(f"UPDATE {table} SET value = ? WHERE offset = 0", (values[0].replace(b"records", b"fields"),))
        with pytest.raises(EraseError, match="the record at offset 1 does not follow the one before it"):
            audit.check(log)


def test_two_at_once_the_second_is_refused(tmp_path: Path) -> None:
    _, pipeline = shop_in(tmp_path)
    request([pipeline], ANN)
    with Register(register_of(pipeline.log)) as register, register.alone(), pytest.raises(AlreadyErasing):
        request([pipeline], Subject("user", "8"))


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    _, pipeline = shop_in(tmp_path)
    with pytest.raises(ConfigError, match="no stream or table says that its records are a patient's; there are user"):
        request([pipeline], Subject("patient", "7"))
    with pytest.raises(ConfigError, match="column user_id of topic orders is long; found 'ann'"):
        request([pipeline], Subject("user", "ann"))
    with pytest.raises(ConfigError, match="expected KIND=NAME"):
        subject_of("user")
    other = Pipeline("other", log="sqlite:other.db")
    with pytest.raises(ConfigError, match="expected pipelines of one log"):
        request([pipeline, other], ANN)
    with pytest.raises(NotSupported, match="records of Kafka cannot be changed"):
        request([Pipeline("far", log="kafka://localhost:9092")], ANN)


def test_columns_are_followed_through_joins_groups_and_new_names() -> None:
    pipeline = Pipeline("p")
    orders = pipeline.stream(
        "orders", "user_id long, amount double, at timestamp", time="at", subject={"user": "user_id"}
    )
    users = pipeline.table("users", "id long, name string", key="id", subject={"user": "id"})
    joined = orders.join(users, "user_id = id", as_of="at")
    assert subject_columns(joined.node) == {"user_id": "user", "id": "user"}
    assert subject_columns(joined.select("USER_ID AS who", "name", "user_id + 1 AS next").node) == {"who": "user"}
    assert subject_columns(joined.group_by("id AS who").agg(n="count(*)").where("n > 1").node) == {"who": "user"}
    assert subject_columns(orders.group_by("amount").agg(n="count(*)").node) == {}


def test_a_list_of_hidden_rows_is_kept_by_the_store(tmp_path: Path) -> None:
    rows = [Hidden("a", "v", "who", "7"), Hidden("b", "v", "who", "8")]
    with open_writer(f"sqlite:{tmp_path}/views.db") as writer, open_reader(f"sqlite:{tmp_path}/views.db") as reader:
        assert reader.hidden() == []
        writer.hide(rows)
        writer.hide(rows[:1])
        assert reader.hidden() == rows
        writer.unhide(["a"])
        assert reader.hidden() == rows[1:]
        writer.unhide(["b", "c"])
        assert reader.hidden() == []
