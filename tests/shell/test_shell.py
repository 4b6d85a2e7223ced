"""The shell: at a real terminal, and without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from pyspark.sql import SparkSession

from millstream import Event, load_pipeline, open_log
from millstream.cli import execute
from millstream.pipeline import Pipeline
from millstream.shell.prompt import Words
from millstream.shell.query import Query
from millstream.shell.session import Session
from millstream.window import tumbling
from tests.shell.terminal import Terminal
from tests.waiting import until

CLI = "import sys; from millstream.cli import main; main(sys.argv[1:])"
SHOP = """\
CREATE PIPELINE shop WITH (log = 'sqlite:shop.db');
CREATE STREAM clicks (page STRING, n INT, at TIMESTAMP, WATERMARK FOR at AS at);
CREATE TEMPORARY VIEW big AS SELECT page, n FROM clicks WHERE n > 2;
CREATE VIEW pages AS SELECT page, count(*) AS n FROM clicks GROUP BY page;
CREATE SINK told INTO 'files:out' FROM pages;
"""


def append(folder: Path, *rows: tuple[str, int]) -> None:
    with open_log(f"sqlite:{folder / 'shop.db'}") as log:
        if "clicks" not in [topic.name for topic in log.topics()]:
            log.create_topic("clicks", 1)
        times = [f"2026-01-31T12:00:{n:02}Z" for _, n in rows]
        events = [json.dumps({"page": page, "n": n, "at": at}) for (page, n), at in zip(rows, times, strict=True)]
        log.append("clicks", [Event(event.encode()) for event in events])


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a definition and a log with three clicks."""
    (tmp_path / "shop.sql").write_text(SHOP)
    append(tmp_path, ("/", 1), ("/help", 2), ("/", 3))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = execute(["sql", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


# without a terminal


def test_a_query_is_answered_over_the_log_so_far(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = ran(capfd, "shop.sql", "-c", "SELECT page, n FROM big; SELECT * FROM pages")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["page", "n"], ["/", "3"], ["page", "n"], ["/", "2"], ["/help", "1"],
    ]  # fmt: skip
    append(shop, ("/help", 4))
    code, out, _ = ran(capfd, "shop.sql", "--json", "-c", "SELECT * FROM pages")
    assert json.loads(out) == [{"page": "/", "n": 2}, {"page": "/help", "n": 2}]


def test_an_order_is_kept(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    append(shop, ("/z", 8), ("/a", 9))
    code, out, _ = ran(capfd, "shop.sql", "--json", "-c", "SELECT page, n FROM clicks ORDER BY n DESC LIMIT 3")
    assert (code, [row["n"] for row in json.loads(out)]) == (0, [9, 8, 3])


def test_a_pattern_is_a_question_too(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    append(shop, ("/help", 4), ("/help", 5))
    sql = """SELECT first, n FROM clicks MATCH_RECOGNIZE (
        PARTITION BY page ORDER BY at MEASURES A.n AS first, count(*) AS n PATTERN (A B+) DEFINE B AS n > PREV(n))"""
    code, out, err = ran(capfd, "shop.sql", "--json", "-c", sql)
    assert code == 0, err
    assert sorted(row["n"] for row in json.loads(out)) == [2, 3]
    code, _, err = ran(capfd, "shop.sql", "-c", sql.replace("PREV(n)", "PREV(m)"))
    assert (code, "line 2, column 103: define B: no column m" in err) == (1, True), err


def test_an_answer_may_be_ordered_or_cut_alone(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    append(shop, ("/z", 8), ("/a", 9))

    def asked(sql: str) -> list[int]:
        code, out, err = ran(capfd, "shop.sql", "--json", "-c", sql)
        assert code == 0, err
        return [row["n"] for row in json.loads(out)]

    assert asked("SELECT page, n FROM clicks ORDER BY n DESC") == [9, 8, 3, 2, 1]
    assert asked("SELECT * FROM clicks LIMIT 2") == [1, 2]
    assert asked("SELECT n FROM (SELECT n FROM clicks ORDER BY n DESC LIMIT 3) LIMIT 1") == [9]
    code, _, err = ran(
        capfd, "shop.sql", "-c", "CREATE VIEW v AS SELECT n FROM clicks LIMIT 2; SELECT n FROM clicks LIMIT 0"
    )
    assert code == 1
    assert err.count("LIMIT without ORDER BY") == 2


def test_what_is_not_admitted_is_said_and_shown(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    append(shop, ("/late", 0))
    with open_log("sqlite:shop.db") as log:
        log.append("clicks", [Event(b"nonsense"), Event(b'{"n": "many"}')])
    code, out, err = ran(capfd, "shop.sql", "--json", "-c", "SELECT n FROM clicks; SHOW REJECTED")
    assert code == 0
    assert err == "3 of 6 records were not admitted (1 late, 2 malformed); SHOW REJECTED says which\n"
    rows, letters = (json.loads(f"[{part}") for part in out.split("[\n")[1:])
    assert [row["n"] for row in rows] == [1, 2, 3]
    assert [(each["offset"], each["reason"]) for each in letters] == [(3, "late"), (4, "malformed"), (5, "malformed")]
    assert letters[0]["detail"].startswith("the watermark was 2026-01-31 12:00:03")
    code, _, err = ran(capfd, "shop.sql", "-c", "SELECT 1 AS one FROM big WHERE n > 100")
    assert "3 of 6 records" in err


def test_the_log_that_a_flag_names_is_the_log(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = SHOP.replace("shop.db", "no.db") + "SELECT n FROM big"
    assert ran(capfd, "-c", script)[0] == 1
    code, out, _ = ran(capfd, "--log", "sqlite:shop.db", "--json", "-c", script)
    assert (code, json.loads(out)) == (0, [{"n": 3}])


def test_rows_are_limited_and_that_is_said(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = ran(capfd, "shop.sql", "--json", "--max", "2", "-c", "SELECT n FROM clicks")
    assert (code, json.loads(out)) == (0, [{"n": 1}, {"n": 2}])
    assert err == "and 1 more rows; --max shows more at a time\n"


def test_statements_define_and_an_error_does_not_end_it(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = (
        "CREATE STREAM clicks (n INT);\nSELECT n FROM clicks;\nSELECT nn FROM clicks;\nDELETE x;\n"
        "CREATE VIEW v AS SELECT n FROM clicks WHERE n > 1;\nSELECT n FROM v"
    )
    code, out, err = ran(capfd, "--log", "sqlite:shop.db", "--json", "-c", script)
    assert code == 1
    assert out.replace(" ", "").replace("\n", "") == '[{"n":1},{"n":2},{"n":3}][{"n":2},{"n":3}]'
    assert "stream clicks\n" in err
    assert "view v\n" in err
    assert "error: line 3, column" in err
    assert "error: line 4, column 1: expected CREATE, DROP, SELECT, SHOW, DESCRIBE or EXPLAIN; found `DELETE`" in err


def test_a_definition_can_be_forgotten_and_made_anew(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    again = "CREATE VIEW pages AS SELECT page FROM clicks; SELECT page FROM pages"
    code, _, err = ran(capfd, "shop.sql", "-c", again)
    assert code == 1
    assert "line 1, column 13: pages: there is a stream, table or view of that name already" in err
    for wrong in ("DROP THING pages", "DROP TABLE pages"):
        assert ran(capfd, "shop.sql", "-c", wrong)[0] == 1
    code, out, err = ran(capfd, "shop.sql", "--json", "-c", f"DROP VIEW Pages; DROP VIEW big; DROP SINK told; {again}")
    assert (code, json.loads(out)) == (0, [{"page": "/"}, {"page": "/help"}, {"page": "/"}])
    assert "view pages is forgotten\n" in err


def test_nothing_is_done_after_exit(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ran(capfd, "shop.sql", "-c", "EXIT", "-c", "nonsense") == (0, "", "")


def test_a_whole_file_can_be_read_from_the_input(shop: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLI, "sql", "--json"], input=SHOP + "SELECT * FROM pages;", text=True, capture_output=True,
        cwd=shop, env=environment(shop), check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"page": "/", "n": 2}, {"page": "/help", "n": 1}]


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("SHOW STREAMS", [{"stream": "clicks", "topic": "clicks", "columns": "page, n, at", "key": ""}]),
        ("SHOW TABLES", []),
        ("show topics", [{"topic": "clicks", "partitions": 1, "records": 3}]),
        (
            "SHOW VIEWS",
            [
                {"view": "pages", "columns": "page, n", "key": "page", "emit": "changes", "to": "sqlite:shop.views.db"},
                {"view": "big", "columns": "page, n", "key": "", "emit": "temporary", "to": ""},
            ],
        ),
        ("SHOW SINKS", [{"sink": "told", "view": "pages", "to": "files:out", "mode": "exactly_once", "refused": "stop"}]),
        ("DESCRIBE Clicks", [{"column": "page", "type": "string"}, {"column": "n", "type": "int"}, {"column": "at", "type": "timestamp"}]),
        ("DESC pages", [{"column": "page", "type": "string"}, {"column": "n", "type": "bigint"}]),
    ],
)  # fmt: skip
def test_what_there_is_can_be_shown(
    shop: Path, capfd: pytest.CaptureFixture[str], statement: str, shown: list[dict[str, Any]]
) -> None:
    code, out, _ = ran(capfd, "shop.sql", "--json", "-c", statement)
    assert (code, json.loads(out)) == (0, shown)


def test_a_query_can_be_explained(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for what in ("SELECT page, count(*) AS n FROM clicks GROUP BY page", "pages"):
        code, out, _ = ran(capfd, "shop.sql", "-c", f"EXPLAIN {what}")
        assert code == 0
        assert "keeps    one row for each page: count(*)" in out
        assert "stored   nowhere: only its changes go on, a row known by page" in out


def test_nothing_is_left_of_it_and_the_log_is_as_it_was(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in shop.iterdir())
    assert ran(capfd, "shop.sql", "-c", "SELECT * FROM pages")[0] == 0
    assert sorted(path.name for path in shop.iterdir()) == before


# what the parts do


def test_the_answer_of_spark_is_the_same(shop: Path, spark: SparkSession) -> None:
    pipeline = load_pipeline("shop.sql")
    for name, relation in pipeline.relations.items():
        alone, by_spark = (Query(pipeline, relation, spark=which).answer() for which in (False, True))
        assert alone.height, name
        assert alone.equals(by_spark), name


def told_so_far(query: Query, shop: Path) -> Sequence[Any]:
    """What a follow tells: of what is there, and of two more clicks."""
    told: list[Any] = []
    stop = threading.Event()
    follower = threading.Thread(target=query.follow, args=(told.append, stop))
    follower.start()
    try:
        until(lambda: told, timeout=120)
        append(shop, ("/", 5))
        until(lambda: len(told) > 1, timeout=120)
    finally:
        stop.set()
        follower.join(timeout=120)
    assert not follower.is_alive()
    return told


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_follow_tells_what_is_there_and_then_what_changes(
    shop: Path, spark: SparkSession, by_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "own").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shop / "own"))  # others have shells too
    pipeline = load_pipeline("shop.sql")
    query = Query(pipeline, pipeline.relations["pages"], spark=by_spark)
    first, second = told_so_far(query, shop)
    assert first == [("+", {"page": "/", "n": 2}), ("+", {"page": "/help", "n": 1})]
    assert second == [("-", {"page": "/", "n": 2}), ("+", {"page": "/", "n": 3})]
    with open_log("sqlite:shop.db") as log:
        assert log.groups() == []
    assert list((shop / "own").glob("millstream-sql-*")) == []


def test_a_follow_appends_no_heartbeats(shop: Path, spark: SparkSession) -> None:
    pipeline = Pipeline("shop", log="sqlite:shop.db")
    clicks = pipeline.stream("clicks", "n int, at timestamp", time="at", idle="100 ms")
    query = Query(pipeline, clicks.group_by(tumbling("at", "1 minute")).agg(n="count(*)"), spark=True)
    stop, told = threading.Event(), threading.Event()
    follower = threading.Thread(target=query.follow, args=(lambda _: told.set(), stop))
    follower.start()
    assert told.wait(timeout=120)
    stop.wait(3)  # a run appends one within a second here
    stop.set()
    follower.join(timeout=120)
    with open_log("sqlite:shop.db") as log:
        assert log.bounds("clicks")[0].end == 3


def test_a_query_that_only_spark_can_compute_is_computed_by_spark(shop: Path, spark: SparkSession) -> None:
    pipeline = Pipeline("shop", log="sqlite:shop.db")
    clicks = pipeline.stream("clicks", "page string, n int")
    query = Query(pipeline, clicks.select("soundex(page) AS s", "n"))
    assert query.types() is None
    assert query.answer()["n"].to_list() == [1, 2, 3]


def test_completion_knows_keywords_relations_and_columns(shop: Path) -> None:
    words = Words(Session(load_pipeline("shop.sql")))

    def completed(text: str) -> list[str]:
        return [each.text for each in words.get_completions(Document(text), CompleteEvent())]

    assert completed("SELECT pa") == ["pages", "page", "partition"]
    assert completed("WHE") == ["WHEN", "WHERE"]
    assert completed("sel") == ["select"]
    assert "\\json" in completed("\\j")
    assert completed("SELECT \\j") == []
    assert completed("SELECT ") == []


# at a terminal


def environment(folder: Path) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    given = {
        "XDG_STATE_HOME": str(folder / "state"),
        "TMPDIR": str(folder / "tmp"),
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
    }
    return {**os.environ, **given, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture
def terminal(shop: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    flags = getattr(request, "param", ())
    found = Terminal([sys.executable, "-c", CLI, "sql", "--log", "sqlite:shop.db", *flags], shop, environment(shop))
    yield found
    found.end()


@pytest.mark.parametrize("terminal", [(), ("--spark",)], indirect=True, ids=["alone", "spark"])
def test_a_session_at_a_terminal(shop: Path, terminal: Terminal) -> None:
    terminal.expect("Millstream over sqlite:shop.db; help, exit")
    terminal.expect("millstream>")
    terminal.type("CREATE STREAM clicks (page STRING, n INT,\r")
    terminal.type("at TIMESTAMP, WATERMARK FOR at AS at);\r")
    terminal.expect("stream clicks\n")
    terminal.type("\\d\r")
    terminal.expect("no such command .d; there are help, exit")
    terminal.type("SELECT nonsense FROM clicks;\r")
    terminal.expect("error: line 1, column .*nonsense")
    terminal.type("SELECT page, n FROM cli\t")
    terminal.expect(r"FROM cli.*cks")
    terminal.type(";\r")
    terminal.expect(r"page +n *\n/ +1 *\n/help +2 *\n/ +3 *\n", 180)
    terminal.type("SELECT page, count(*) AS n FROM clicks GROUP BY page EMIT CHANGES;\r")
    terminal.expect(r"\+ / +2 *\n\+ /help +1 *\n", 180)
    append(shop, ("/help", 4))
    terminal.expect(r"- /help +1 *\n\+ /help +2 *\n")
    terminal.type("\x03")
    terminal.expect("millstream>")
    terminal.type("SELECT gone\x03")
    terminal.expect("gone")
    terminal.type("\\json\r")
    terminal.type("SELECT n FROM clicks WHERE n > 3;\r")
    terminal.expect(r'"n": 4')
    terminal.expect("millstream>")
    terminal.type("exit\r")
    assert terminal.process.wait(timeout=60) == 0
    history = (shop / "state" / "millstream" / "sql_history").read_text()
    assert "+SELECT n FROM clicks WHERE n > 3;" in history
    assert list((shop / "tmp").glob("millstream-sql-*")) == []


def test_sigterm_ends_a_shell(terminal: Terminal) -> None:
    terminal.expect("millstream>")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.process.wait(timeout=60) == 128 + signal.SIGTERM
