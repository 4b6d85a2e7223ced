"""Pipelines from the command line: run, stop, go on, look, verify, and what is said when something is wrong."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.cli import execute as cli
from millstream.cli.run import summary
from millstream.event import Event
from millstream.log import open_log
from millstream.runtime.run import Progress, run
from millstream.store import open_reader
from tests.runtime.shop_file import Child, append_clicks, batches, load, write_shop

SHOWN = {"pipeline", "batch", "records", "rate", "lag", "watermark", "state_rows", "state_bytes", "late"}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline's file, beside a log with 400 clicks in it."""
    folder = tmp_path_factory.mktemp("shop")
    file = write_shop(folder)
    append_clicks(folder, 0, 400)
    return file


def ended(*arguments: object) -> tuple[int, str, str]:
    child = Child(*arguments)
    try:
        return child.wait()
    finally:
        child.end()


@pytest.fixture(scope="module")
def told_to_stop(shop: Path) -> tuple[int, list[dict[str, Any]], str]:
    """The first run, in small batches: it gets a SIGTERM after the first of them."""
    child = Child("run", shop, "--rate-limit", 50, "--interval", "1s", "--json")
    try:
        assert child.process.stdout is not None
        first = child.process.stdout.readline()
        child.process.send_signal(signal.SIGTERM)
        code, out, err = child.wait()
        child.leaves_nothing()
    finally:
        child.end()
    return code, [json.loads(line) for line in (first + out).splitlines()], err


@pytest.fixture(scope="module")
def gone_on(shop: Path, told_to_stop: object) -> tuple[int, list[dict[str, Any]], str]:
    """The second run, to the end."""
    code, out, err = ended("run", shop, "--once", "--json")
    return code, [json.loads(line) for line in out.splitlines()], err


def test_a_batch_is_a_line_of_json_and_sigterm_ends_a_run_in_good_order(
    shop: Path, told_to_stop: tuple[int, list[dict[str, Any]], str]
) -> None:
    code, lines, err = told_to_stop
    assert code == 0, err
    assert err == ""
    assert lines[0].keys() >= SHOWN
    assert [line["batch"] for line in lines] == list(range(len(lines)))
    assert [line["records"] for line in lines] == [50 * (number + 1) for number in range(len(lines))]
    assert [line["lag"] for line in lines] == [400 - 50 * (number + 1) for number in range(len(lines))]
    assert lines[0]["state_rows"] > 0
    assert lines[0]["state_bytes"] > 0
    assert lines[0]["rate"] > 0


def test_the_next_run_goes_on_where_the_last_one_ended(
    shop: Path,
    told_to_stop: tuple[int, list[dict[str, Any]], str],
    gone_on: tuple[int, list[dict[str, Any]], str],
) -> None:
    code, lines, err = gone_on
    assert code == 0, err
    assert lines[0]["batch"] == told_to_stop[1][-1]["batch"] + 1
    assert lines[-1]["records"] == 400 - told_to_stop[1][-1]["records"]
    assert lines[-1]["lag"] == 0
    assert lines[-1]["late"] > 0
    assert lines[-1]["watermark"].startswith("2026-01-01T00:06:2")


def test_a_run_with_nothing_to_do_says_so_and_ends(shop: Path, gone_on: tuple[int, list[dict[str, Any]], str]) -> None:
    before = batches(load(shop))
    code, out, err = ended("run", shop, "--once")
    assert (code, out) == (0, "")
    assert err.strip() == "shop: 0 records in this run; views: per_minute, by_user"
    assert batches(load(shop)) == before


def test_views_are_listed_shown_and_queried(
    shop: Path, gone_on: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.parent)

    def asked(*arguments: str) -> Any:
        assert cli(["views", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    listed = asked("list")
    assert [(each["name"], each["pipeline"], each["key"]) for each in listed] == [
        ("by_user", "shop", "user"),
        ("per_minute", "shop", "page, window_start"),
    ]
    assert asked("list", "--views", "shop.py") != []
    people = asked("show", "by_user", "--views", "shop.py")
    assert [row["user"] for row in people] == list(range(7))
    assert len(asked("show", "by_user", "--max", "3")) == 3
    total = asked("query", "by_user", "SELECT sum(n) AS n FROM by_user")
    assert total == [{"n": sum(row["n"] for row in people)}]
    admitted = asked("query", "by_user", "SELECT sum(admitted) AS n FROM millstream_admission")
    assert admitted == total
    told = summary(load(shop), "shop.py", Progress("shop", records=400, admitted=360, late=32, malformed=8))
    assert "40 of 400 records were not admitted (32 late, 8 malformed); `millstream views query per_minute" in told
    letters = asked(*shlex.split(told.split("`")[1])[2:])
    assert {each["reason"] for each in letters} == {"late", "malformed"}
    assert cli(["views", "show", "by_user"]) == 0
    assert "best" in capsys.readouterr().out
    assert cli(["views", "show", "nothing"]) == 1
    error = capsys.readouterr().err
    assert "error: no view nothing; there are by_user, per_minute" in error
    assert "hint: " in error
    assert cli(["views", "query", "by_user", "DELETE FROM by_user"]) == 1
    assert "error: " in capsys.readouterr().err
    assert asked("show", "by_user") == people


def test_a_view_is_a_row_by_its_key_and_a_frame_of_every_kind(shop: Path, gone_on: object, spark: SparkSession) -> None:
    view = load(shop).views["by_user"]
    row = view.get(3)
    assert row is not None
    assert row["user"] == 3
    assert view.get(99) is None
    assert view.to_polars().filter(user=3).to_dicts() == [row]
    frame = view.to_pandas()
    assert frame[frame.user == 3].to_dict("records") == [row]
    assert [each.asDict() for each in view.to_spark(spark).where("user = 3").collect()] == [row]
    windows = load(shop).views["per_minute"]
    one = windows.to_polars().to_dicts()[0]
    assert windows.get(one["page"], one["window_start"]) == one
    assert windows.to_spark(spark).count() == windows.to_polars().height


def test_a_session_that_is_passed_in_is_not_stopped(shop: Path, gone_on: object, spark: SparkSession) -> None:
    assert run(load(shop), spark=spark, once=True).records == 0
    assert spark.range(3).count() == 3


# Through our own connection: a plain SQLite would leave pages with wrong checksums, which is another error.
TAMPER = """
import sys
from pathlib import Path
from millstream.store.sqlite.file import ViewFile
file = ViewFile(Path(sys.argv[1]), create=False)
with file.write() as db:
    db.execute("UPDATE by_user SET n = n + 1 WHERE user = 3")
file.close()
"""


def test_verify_finds_a_view_that_was_tampered_with(shop: Path, gone_on: object) -> None:
    code, out, err = ended("verify", shop, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["equal"] is True
    assert {view["view"]: (view["missing"], view["extra"]) for view in found["views"]} == {
        "per_minute": (0, 0), "by_user": (0, 0), "millstream_admission": (0, 0),
    }  # fmt: skip
    n = (load(shop).views["by_user"].get(3) or {})["n"]
    subprocess.run([sys.executable, "-c", TAMPER, str(shop.parent / "views.db")], check=True)
    try:
        code, out, err = ended("verify", shop)
    finally:
        undo = TAMPER.replace("n + 1", "n - 1")
        subprocess.run([sys.executable, "-c", undo, str(shop.parent / "views.db")], check=True)
    assert code == 1
    assert "NOT equal" in err
    said = " ".join(err.split())
    assert f"by_user: missing: {{'user': 3, 'n': {n}," in said
    assert f"by_user: extra: {{'user': 3, 'n': {n + 1}," in said
    assert "per_minute:" not in said


@pytest.mark.parametrize("command", ["run", "verify"])
def test_what_is_wrong_is_said_with_a_hint_and_without_a_stack(command: str, tmp_path: Path) -> None:
    file = write_shop(tmp_path)
    options = ["--once"] if command == "run" else []

    def said(name: object, code: int = 1) -> str:
        found, out, err = ended(command, name, *options)
        assert (found, out) == (code, ""), err
        assert err.startswith("error: ")
        assert "Traceback" not in err
        assert "\tat " not in err
        return " ".join(err.split())

    assert "no such file" in said(tmp_path / "nowhere.py")
    (tmp_path / "bad.py").write_text("from millstream.pipeline import Pipeline\np = Pipeline('p')\np.view('v', 3)\n")
    assert "bad.py:3" in said(tmp_path / "bad.py")
    if command == "verify":
        assert "hint: " in said(file)  # it has not run
        return
    text = file.read_text()
    file.write_text(text.replace('"clicks", "user', '"visits", "user'))
    missing = said(file)
    assert "visits" in missing
    assert "hint: " in missing
    file.write_text(text.replace("log.db", "nowhere.db"))
    nowhere = said(file)
    assert "nowhere.db" in nowhere
    assert "hint: " in nowhere
    assert not (tmp_path / "views.db").exists()
    assert not (tmp_path / "nowhere.db").exists()


def test_a_pipeline_that_names_no_log_has_that_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from millstream import Pipeline\n"
        'shop = Pipeline("shop", to="sqlite:views.db")\n'
        'shop.view("seen", shop.stream("clicks", "n int").group_by().agg(n="count(*)"))\n'
    )
    with open_log(f"sqlite:{tmp_path / 'other.db'}") as log:
        log.create_topic("clicks")
        log.append("clicks", [Event(b'{"n": 1}')] * 3)
    child = Child("run", "shop.py", "--once", cwd=tmp_path, variables={"MILLSTREAM_LOG": "sqlite:other.db"})
    try:
        code, _, err = child.wait()
    finally:
        child.end()
    assert code == 0, err
    with open_reader(f"sqlite:{tmp_path / 'views.db'}") as store:
        assert store.query("SELECT n FROM seen").rows == [(3,)]
    assert not (tmp_path / "millstream.db").exists()
