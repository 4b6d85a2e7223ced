"""A file of SQL is a pipeline wherever a file of Python is one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millstream import Pipeline, load_pipeline
from millstream.cli import execute
from millstream.errors import PlanError
from millstream.testing import Trial
from millstream.window import tumbling

FILE = Path(__file__).parent / "auctions.sql"


def in_python() -> Pipeline:
    made = Pipeline("auctions")
    events = made.stream(
        "events", "kind INT, auction BIGINT, price BIGINT, at TIMESTAMP",
        time="at", delay="2 seconds", late="correct", lateness="1 minute",
    )  # fmt: skip
    users = made.table("users", "id BIGINT, name STRING", key="id")
    bids = events.where("kind = 2").select("auction", "price * 2 AS price", "at")
    busy = bids.group_by("auction", tumbling("at", "10 seconds")).agg(n="count(*)", price="max(price)")
    made.view("busy", busy, emit="final")
    made.view("named", users.select("id", "upper(name) AS name"))
    return made


def test_it_is_what_python_makes() -> None:
    made, meant = load_pipeline(FILE), in_python()
    assert made.views["busy"].columns == meant.views["busy"].columns
    assert made.fingerprint() == meant.fingerprint()


def test_it_can_be_tried(trial: Callable[..., Trial]) -> None:
    app = trial("auctions.sql")

    def bid(auction: int, price: int, second: int) -> dict[str, object]:
        return {"kind": 2, "auction": auction, "price": price, "at": f"2026-01-31T12:00:{second:02}Z"}

    app.feed("events", [bid(1, 10, 0), bid(1, 30, 9), {"kind": 1, "at": "2026-01-31T12:00:09Z"}, bid(1, 5, 11)])
    assert app.rows("busy") == []
    app.feed("events", [bid(2, 7, 12)])
    start, end = (datetime(2026, 1, 31, 12, 0, second, tzinfo=UTC) for second in (0, 10))
    window = {"auction": 1, "window_start": start, "window_end": end}
    assert app.rows("busy") == [{**window, "n": 2, "price": 60}]
    app.feed("events", [bid(1, 99, 4)])  # late, and allowed
    assert app.rows("busy") == [{**window, "n": 3, "price": 198}]
    app.feed("users", [{"id": 1, "name": "ann"}])
    assert app.rows("named") == [{"id": 1, "name": "ANN"}]


def test_commands_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copy(FILE, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert execute(["explain", "auctions.sql", "busy", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["pipeline"] == "auctions"
    assert execute(["views", "list", "--views", "auctions.sql"]) == 1
    assert "no views at auctions.views.db" in capfd.readouterr().err
    assert execute(["views", "show", "busy", "--views", "auctions.sql", "--as-of", "1"]) == 1
    assert "no views at" in capfd.readouterr().err
    Path("auctions.sql").write_text("CREATE VIEW x AS SELEC 1")
    assert execute(["run", "auctions.sql", "--once"]) == 1
    assert capfd.readouterr().err.startswith("error: auctions.sql:1:18: ")


def test_a_file_of_sql_is_one_pipeline() -> None:
    with pytest.raises(PlanError, match="a file of SQL defines one pipeline; found :shop"):
        load_pipeline(f"{FILE}:shop")


def test_hints_say_it_in_sql() -> None:
    made = Pipeline("p")
    made.stream("s", "a INT, at TIMESTAMP")
    with pytest.raises(PlanError) as error:
        made.view(
            "v",
            sql="SELECT a, count(*) AS n FROM tumble(TABLE s, at, INTERVAL 1 MINUTE) GROUP BY a, window_start, window_end",
        )
    assert 'time="at"' not in error.value.hint
    assert "CREATE STREAM s (…, WATERMARK FOR at AS at - INTERVAL 10 SECONDS)" in error.value.hint
