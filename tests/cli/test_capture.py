"""``millstream capture`` as a user meets it."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from millstream.capture.control import read_known
from millstream.cli import execute
from millstream.cli.run import in_snapshot
from millstream.errors import PlanError
from millstream.event import Event
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.testing import MariaDbServer
from tests.capture.databases import MariaDb, Sqlite
from tests.capture.process import COMMAND, started
from tests.waiting import until

Go = Callable[..., tuple[int, str, str]]


@pytest.fixture
def go(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Go:
    """Run a command line; give (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def go(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
        code = execute(["capture", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return go


@pytest.fixture
def database(mariadb: MariaDbServer) -> MariaDb:
    found = MariaDb(mariadb)
    found.made(rows=3)
    return found


def test_a_capture_is_begun_looked_at_and_removed(go: Go, database: MariaDb) -> None:
    name = database.world.name  # a capture is called as the database unless it is said
    code, out, _ = go("start", database.address, "--table", "a", "--once", "--json")
    last = json.loads(out.splitlines()[-1])
    assert (code, last["capture"], last["rows"], last["caught_up"]) == (0, name, 3, True)
    database.run("INSERT INTO a VALUES (9, 9, null)")
    code, out, _ = go("status", "--json")
    (row,) = json.loads(out)
    assert (row["name"], row["tables"], row["snapshot"]) == (name, f"{name}.a", "complete")
    assert row["behind"].startswith("by ")
    code, _, err = go("start", database.address, "--table", "a", "--once")
    assert (code, "0 rows and 1 changes" in err) == (0, True)
    code, out, _ = go("status", name)
    assert "complete" in out
    assert json.loads(go("status", name, "--json")[1])[0]["behind"] == "no"
    assert go("remove", name)[0] == 2  # nobody said yes
    code, _, err = go("remove", name, "--yes")
    assert (code, f"removed {name}" in err) == (0, True)
    assert go("status", "--json")[1].strip() == "[]"
    code, _, err = go("status", name)
    assert (code, "none of that name" in err) == (1, True)


def test_a_table_is_asked_for_again_and_read_at_the_next_start(go: Go, database: MariaDb) -> None:
    name = database.world.name
    go("start", database.address, "--table", "a", "--once")
    assert go("snapshot", name, "--table", "users")[0] == 2
    assert go("snapshot", name, "--table", f"{name}.a")[0] == 0
    assert json.loads(go("status", "--json")[1])[0]["requests"] == [f"{name}.a"]
    assert "3 rows and 0 changes" in go("start", database.address, "--table", "a", "--once")[2]
    assert json.loads(go("status", "--json")[1])[0]["requests"] == []


def test_a_difference_is_printed_and_is_exit_code_1(go: Go, database: MariaDb) -> None:
    name = database.world.name
    go("start", database.address, "--table", "a", "--once")
    code, out, _ = go("diff", name, "--json")
    assert (code, [each["equal"] for each in json.loads(out)]) == (0, [True])
    with open_log("sqlite:millstream.db") as log:
        log.append(f"{name}.{name}.a", [Event(None, b"1")])
    code, out, err = go("diff", name)
    assert (code, "no" in out) == (1, True)
    assert f'{name}.a 1: missing; database {{"id":1,"v":1,"t":"row 1"}}, topic null' in err
    code, _, err = go("alter", name, "ALTER TABLE a ADD COLUMN w int")
    assert (code, "run the statement there" in err) == (1, True)


def test_columns_are_declared_in_python_and_in_sql(go: Go, database: MariaDb) -> None:
    name = database.world.name
    code, out, _ = go("columns", database.address, "--table", "a", "--name", "shop")
    assert code == 0
    assert f'"id int, v int, t string",\n    key="id",\n    topic="shop.{name}.a",\n    codec="debezium",' in out
    assert f"PRIMARY KEY (id)\n) WITH (topic = 'shop.{name}.a', format = 'debezium');" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("start", "oracle://x/y", "--table", "a"), "expected postgresql://"),
        (("start", "mysql://me:geheim@localhost/shop", "--table", "a"), "secret"),
        (("start", "mysql://me@localhost/shop"), "--table"),
        (("start", "mysql://me@localhost/shop", "--table", "a", "--name", "a b"), "expected a name"),
        (("start", "mysql://me@localhost/shop", "--table", "a", "--outbox-topics", "x"), "--outbox TABLE"),
        (("start", "mysql://me@localhost/shop", "--table", "a", "--outbox", "o"), "--outbox-topics"),
    ],
)
def test_what_cannot_be_is_refused_with_the_cure(go: Go, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = go(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "geheim" not in err


def test_a_terminal_shows_a_bar_for_each_table_and_nothing_of_it_stays(tmp_path: Path) -> None:
    database, (ours, theirs) = Sqlite(tmp_path / "shop.db"), pty.openpty()
    database.made(rows=5000)
    command = [*COMMAND, "capture", "start", database.address, "--table", "a", "--table", "b", "--once"]
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stderr=theirs, cwd=tmp_path, env=environ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # how a terminal ends
            while piece := os.read(ours, 1 << 16):
                shown += piece
        os.close(ours)
    assert process.returncode == 0, shown
    said = shown.decode()
    assert "shop a 5,000" in said
    assert said.rindex("\x1b[2K") < said.index("shop: 5,000 rows and 0 changes in this run")  # the lines are erased


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_good_order(database: MariaDb, tmp_path: Path, number: int) -> None:
    url = f"sqlite:{tmp_path}/log.db"
    command = [*COMMAND, "capture", "start", database.address, "--table", "a", "--name", "shop", "--log", url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process, open_log(url) as log:
        until(
            lambda: "shop" in (known := read_known(log)) and known["shop"].progress and known["shop"].progress.position
        )
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, "3 rows and 0 changes" in err) == (0, True), err


def test_a_file_says_what_to_capture(go: Go, database: MariaDb, tmp_path: Path) -> None:
    head = "from millstream import Pipeline\nshop = Pipeline('shop')\n"
    (tmp_path / "shop.py").write_text(f"{head}shop.capture('shop', {database.address!r}, ['a', 'b'])\n")
    code, _, err = go("start", "shop.py", "--once")
    assert (code, "shop: 3 rows and 0 changes" in err) == (0, True)
    code, _, err = go("start", "shop.py", "--once", "--name", "other")
    assert (code, "no capture other; there are shop" in err) == (2, True)
    (tmp_path / "shop.py").write_text(head)
    code, _, err = go("start", "shop.py", "--once")
    assert (code, "found none" in err) == (2, True)
    (tmp_path / "shop.py").write_text(f"{head}shop.capture('shop', 'mysql://me:geheim@x/y', ['a'])\n")
    code, _, err = go("start", "shop.py", "--once")
    assert (code, "secret" in err, "geheim" in err) == (1, True, False)


def test_a_run_says_which_tables_are_still_being_read(go: Go, tmp_path: Path) -> None:
    database = Sqlite(tmp_path / "shop.db")
    database.made(rows=3)
    log = f"sqlite:{tmp_path / 'log.db'}"
    arguments = [database.address, "--log", log, "--table", "a", "--table", "b"]
    with started(*arguments, failpoint="capture.append:kill@2") as process:
        assert process.wait(60) == -9
    pipeline = Pipeline("shop", log=log)
    pipeline.table("users", "id long, v long", key="id", topic="shop.a", codec="debezium")
    assert list(in_snapshot(pipeline)) == [
        "table users: capture shop has not read all rows of a; views grow until it has"
    ]
    assert go("start", *arguments, "--once")[0] == 0
    assert list(in_snapshot(pipeline)) == []
    assert list(in_snapshot(Pipeline("other", log=f"sqlite:{tmp_path / 'nothing.db'}"))) == []


def test_a_capture_is_no_part_of_the_fingerprint() -> None:
    shops = [Pipeline("shop"), Pipeline("shop")]
    for shop in shops:
        shop.view("all", shop.table("users", "id int", key="id"))
    shops[0].capture("shop", "sqlite:shop.db", ["users"])
    assert shops[0].fingerprint() == shops[1].fingerprint()
    with pytest.raises(PlanError, match="one of that name"):
        shops[0].capture("shop", "sqlite:shop.db", ["orders"])
