"""Statements: what they make, that it is what Python makes, and what is said when something is wrong, and where."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from millstream import Clock, Pipeline, load_pipeline
from millstream.errors import PlanError
from millstream.relation.nodes import source_of, sources_of
from millstream.relation.schema import parse_duration
from millstream.sql.script import cut
from millstream.sql.statement import load_script

SHOP = """\
-- everything; a semicolon; in a comment
CREATE PIPELINE shop WITH (log = 'sqlite:shop.db', to = 'sqlite:there.db', buckets = 4, dead_letters = 9, 'spark.a.B' = true, kafka.acks = 'all');
CREATE STREAM events (
    kind INT, page STRING, bid STRUCT<auction: BIGINT, prices: ARRAY<BIGINT>>, `sent` TIMESTAMP, dateTime TIMESTAMP,
    WATERMARK FOR DateTime AS datetime - INTERVAL 4 SECONDS
) WITH (topic = 'nexmark', format = 'json', key = 'kind, page', late = 'route', ahead = INTERVAL '2' HOURS, idle = NULL,
        clock.sent = 'sent', 'clock.wild' = '2 days', sequence = 'page, coalesce(kind, 0)');
CREATE TABLE users (id BIGINT, name STRING, PRIMARY KEY (id, name)) WITH (topic = 'people');
CREATE TABLE places (id BIGINT PRIMARY KEY, name STRING);
CREATE STREAM lines (line STRING) WITH (format = 'text');
CREATE STREAM appends (a INT, WATERMARK FOR _append_time AS _append_time);
CREATE STREAM epochs (ms BIGINT, at AS timestamp_millis(ms), WATERMARK FOR at AS at - INTERVAL 4 SECONDS);
CREATE TEMPORARY VIEW bids AS SELECT page, dateTime FROM events WHERE kind = 2 AND page <> ';';
CREATE VIEW pages WITH (to = 'sqlite:other.db', unbounded = true) AS SELECT page, dateTime FROM bids EMIT CHANGES;
CREATE VIEW names WITH (key = 'name', to = 'nowhere') AS SELECT name, id FROM users;
CREATE SINK out INTO 'files:out' FROM Pages WITH (mode = 'at_least_once', refused = 'dead_letter');
"""


def in_python() -> Pipeline:
    shop = Pipeline(
        "shop",
        log="sqlite:shop.db",
        to="sqlite:there.db",
        buckets=4,
        dead_letters=9,
        spark={"spark.a.B": "true"},
        kafka={"acks": "all"},
    )
    events = shop.stream(
        "events",
        "kind INT, page STRING, bid STRUCT<auction: BIGINT, prices: ARRAY<BIGINT>>, sent TIMESTAMP, dateTime TIMESTAMP",
        topic="nexmark",
        key=["kind", "page"],
        time="dateTime",
        delay="4 seconds",
        late="route",
        ahead="2 hours",
        idle=None,
        clock=Clock(sent="sent", wild="2 days"),
        sequence=("page", "coalesce(kind, 0)"),
    )
    users = shop.table("users", "id BIGINT, name STRING", key=["id", "name"], topic="people")
    shop.table("places", "id BIGINT, name STRING", key="id")
    shop.stream("lines", "line STRING", codec="text")
    shop.stream("appends", "a INT", time="_append_time")
    shop.stream("epochs", "ms BIGINT", time="timestamp_millis(ms) AS at", delay="4 seconds")
    bids = events.where("kind = 2 AND page <> ';'").select("page", "dateTime")
    pages = shop.view("pages", bids, to="sqlite:other.db", unbounded=True)
    shop.view("names", users.select("name", "id"), key="name", to="nowhere")
    shop.sink("out", pages, "files:out", mode="at_least_once", refused="dead_letter")
    return shop


def test_a_pipeline_in_sql_is_the_one_in_python(tmp_path: Path) -> None:
    (tmp_path / "shop.sql").write_text(SHOP)
    made, meant = load_pipeline(tmp_path / "shop.sql"), in_python()
    assert made.fingerprint() == meant.fingerprint()
    said, wanted = made.describe(), meant.describe()
    for source in (*said["streams"], *said["tables"], *said["views"]):
        kind = next(kind for kind in ("streams", "tables", "views") if source in said[kind])
        said[kind][source].pop("place"), wanted[kind][source].pop("place")
    assert said == wanted
    assert (made.spark, made.kafka) == (meant.spark, meant.kafka)
    assert made.views["pages"].unbounded
    assert (made.views["pages"].kept, made.views["names"].kept) == (True, False)
    assert list(made.names) == ["bids"]


def test_places_are_lines_and_columns_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.sql").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    made = load_pipeline("shop.sql")
    assert str(made.place) == "shop.sql:2:1"
    assert str(made.views["pages"].place) == "shop.sql:14:1"
    assert str(source_of(made.streams["events"].node).place) == "shop.sql:3:1"


def test_the_name_of_the_file_is_that_of_the_pipeline() -> None:
    script = "CREATE STREAM a (x INT); CREATE VIEW v AS SELECT x FROM a"
    assert load_script(script, "shop.sql", "shop").name == "shop"
    with pytest.raises(PlanError, match=r"^a b.sql:1:1: pipeline 'a b': expected a name") as error:
        load_script(script, "a b.sql", "a b")
    assert "CREATE PIPELINE name;" in error.value.hint


AVRO = '{"type": "record", "name": "o", "fields": [{"name": "a", "type": "int"}]}'


def test_avro_is_a_format_with_a_schema() -> None:
    made = load_script(f"CREATE STREAM s (a INT) WITH (format = 'AVRO', schema = '{AVRO}')", "f.sql", "f")
    meant = Pipeline("f").stream("s", "a INT", codec=AVRO)
    assert made.streams["s"].node == meant.node


# lateness

LATE = """\
CREATE STREAM a (x INT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 1 SECOND);
CREATE STREAM b (x INT, at TIMESTAMP, WATERMARK FOR at AS at);
CREATE TEMPORARY VIEW t AS SELECT x, at FROM a;
CREATE VIEW v AS SELECT x, at FROM t EMIT CHANGES ALLOWED LATENESS INTERVAL 1 HOUR;
CREATE VIEW w AS SELECT x FROM v ALLOWED LATENESS INTERVAL '60' MINUTES EMIT CHANGES;
CREATE VIEW u AS SELECT x FROM a;
"""


def lateness(made: Pipeline, stream: str) -> tuple[object, str]:
    time = source_of(made.streams[stream].node).time
    assert time is not None
    return time.lateness, time.late


def test_what_views_allow_is_the_lateness_of_the_streams_below_them() -> None:
    made = load_script(LATE, "f.sql", "f")
    assert lateness(made, "a") == (parse_duration("1 hour"), "correct")
    assert lateness(made, "b") == (parse_duration("0s"), "drop")
    for view in made.views.values():
        assert sources_of(view.node) == (made.streams["a"].node,)
    python = Pipeline("f")
    stream = python.stream("a", "x INT, at TIMESTAMP", time="at", delay="1s", late="correct", lateness="1 hour")
    python.view("v", stream)
    assert made.view_fingerprint("v") == python.view_fingerprint("v")


def test_two_views_of_one_stream_allow_the_same() -> None:
    with pytest.raises(PlanError) as error:
        load_script(LATE + "CREATE VIEW z AS SELECT x FROM a ALLOWED LATENESS INTERVAL 2 HOURS", "f.sql", "f")
    assert error.value.message == (
        "f.sql:7:34: view z: it allows stream a 2 hours; view w (at f.sql:5:34) allows it 1 hour"
    )
    assert "allow both the longer of the two" in error.value.hint


def test_a_stream_that_says_otherwise_than_its_views_is_refused() -> None:
    for option in ("late = 'drop'", "late = 'correct', lateness = '2 hours'"):
        script = LATE.replace("1 SECOND);", f"1 SECOND) WITH ({option});")
        with pytest.raises(
            PlanError, match=r"^f.sql:1:1: stream a: view \w \(at f.sql:\d:\d+\) allows it a lateness of 1 hour"
        ):
            load_script(script, "f.sql", "f")
    script = LATE.replace("1 SECOND);", "1 SECOND) WITH (late = 'correct', lateness = INTERVAL 1 HOUR);")
    assert lateness(load_script(script, "f.sql", "f"), "a") == (parse_duration("1 hour"), "correct")


# Python with SQL in it


def shop() -> Pipeline:
    made = Pipeline("shop")
    made.stream("a", "x INT, at TIMESTAMP", time="at", late="correct", lateness="1 hour")
    return made


def test_a_view_may_be_a_query() -> None:
    made, meant = shop(), shop()
    view = made.view("v", sql="SELECT x FROM A WHERE x > 1 EMIT CHANGES ALLOWED LATENESS INTERVAL 1 HOUR;")
    assert view == meant.view("v", meant.streams["a"].where("x > 1").select("x"))
    assert made.fingerprint() == meant.fingerprint()


def test_what_stands_behind_a_query_in_python_counts() -> None:
    made = shop()
    windows = "SELECT window_start, window_end, count(*) AS n FROM tumble(TABLE a, at, INTERVAL 1 MINUTE) GROUP BY window_start, window_end"
    assert made.view("v", sql=f"{windows} EMIT FINAL").emit == "final"
    assert made.view("w", sql=windows, emit="final").emit == "final"
    assert made.view("u", sql=windows).emit == "changes"


def test_a_relation_may_have_a_name_for_sql() -> None:
    made, meant = shop(), shop()
    big = made.define("big", sql="SELECT x FROM a WHERE x > 9")
    made.define("huge", big.where("x > 99"))
    made.view("v", sql="SELECT x FROM huge")
    meant.view("v", meant.streams["a"].where("x > 9").select("x").where("x > 99"))
    assert made.fingerprint() == meant.fingerprint()
    for taken in ("BIG", "a", "v"):
        with pytest.raises(PlanError, match="already"):
            made.define(taken, big)
    with pytest.raises(PlanError, match="view Big: define gave that name"):
        made.view("Big", big)
    with pytest.raises(PlanError, match="table big: define gave that name"):
        made.table("big", "id INT", key="id")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.view("v"), "view v: expected a relation; found None"),
        (lambda p: p.view("v", p.streams["a"], sql="SELECT x FROM a"), "view v: expected either a relation or sql"),
        (lambda p: p.view("v", sql="SELECT x FROM a; SELECT x FROM a"), "view v: expected one query; found 2"),
        (lambda p: p.view("v", sql="SELECT x FROM a EMIT CHANGES", emit="final"), "its query says EMIT CHANGES"),
        (
            lambda p: p.view("v", sql="SELECT x FROM a EMIT FNAL"),
            "line 1, column 22: expected CHANGES or FINAL; found `FNAL`",
        ),
        (
            lambda p: p.view("v", sql="SELECT x\nFROM a\nALLOWED LATENESS INTERVAL 2 HOURS"),
            "line 3, column 1: view v: it allows a lateness of 2 hours, and stream a",
        ),
        (lambda p: p.define("d", sql="SELECT x FROM a EMIT CHANGES"), "define d: nothing comes out of it"),
        (lambda p: p.define("d", shop().stream("b", "y INT")), "define d: stream b"),
        (
            lambda p: p.view("v", sql="SELECT 'x FROM a"),
            "line 1, column 8: this quote, bracket or comment is not closed",
        ),
        (
            lambda p: p.view("v", sql="SELECT x, sum(at) AS n FROM a GROUP BY x"),
            "line 1, column 40: `sum(at)`: expected",
        ),
        (
            lambda p: p.view("v", p.define("d", sql="SELECT sum(at) AS n FROM a")),
            "line 1, column 1: `sum(at)`: expected",
        ),
        (
            lambda p: p.view("v", sql="SELECT x FROM a UNION ALL SELECT at FROM a"),
            "line 1, column 27: union: column x is",
        ),
        (
            lambda p: p.view("v", sql="SELECT x, percentile(x, 2) AS y FROM a GROUP BY x"),
            "line 1, column 11: aggregate y",
        ),
    ],
)
def test_what_is_wrong_with_a_query_in_python_begins_with_its_line(call: object, message: str) -> None:
    made = shop()
    with pytest.raises(PlanError) as error:
        call(made)  # type: ignore[operator]
    assert error.value.message.startswith("tests/sql/test_statement.py:")
    assert message in error.value.message
    place, _, said = error.value.message.partition(": ")
    assert not said.startswith(place)


def test_a_hint_for_a_query_in_python_is_in_sql_and_leaves_the_view_to_python() -> None:
    made = shop()
    with pytest.raises(PlanError) as error:
        made.view("v", sql="SELECT l.x FROM a l JOIN a r ON l.x = r.x")
    assert "joined within a span of time, a stream and a table FOR SYSTEM_TIME AS OF its time" in error.value.hint
    assert error.value.hint.endswith("view(…, unbounded=True)")
    with pytest.raises(PlanError) as error:
        made.view("v", sql="SELECT x FROM a FOR SYSTEM_TIME ALL")
    assert error.value.hint == "FROM users FOR SYSTEM_TIME ALL, of a table by its name"


# what is refused, and where

A = "CREATE STREAM a (x INT, at TIMESTAMP, WATERMARK FOR at AS at);\n"


@pytest.mark.parametrize(
    ("script", "message", "hint"),
    [
        ("", "1:1: expected statements; found none", "CREATE STREAM"),
        ("  SELECT 1", "1:3: expected CREATE PIPELINE, STREAM, TABLE, VIEW, TEMPORARY VIEW or SINK; found `SELECT`", "millstream sql"),
        ("CREATE THING x", "1:8: expected PIPELINE, STREAM", ""),
        (A + "CREATE PIPELINE x", "2:8: expected STREAM, TABLE, VIEW or SINK; found `PIPELINE`", "comes first"),
        ("CREATE OR REPLACE VIEW v AS SELECT 1", "1:8: expected a new name; found `OR`", "leave out OR REPLACE"),
        ("CREATE STREAM IF NOT EXISTS v (a INT)", "1:8: expected a new name", "IF NOT EXISTS"),
        ("CREATE STREAM 1x (a INT)", "1:15: expected the stream's name; found `1`", ""),
        ("CREATE STREAM x", "1:16: expected (; found the end", ""),
        ("CREATE STREAM x (a INT", "1:23: expected ); found the end", ""),
        ("CREATE STREAM x ()", "1:18: expected something before it; found `)`", ""),
        ("CREATE STREAM x (a INT,\n b INTT)", "2:2: schema 'b INTT': expected a Spark type for b; found 'INTT'", "did you mean int?"),
        ("CREATE STREAM x (a INT) y", "1:25: expected ; or the end; found `y`", ""),
        ("CREATE STREAM x (a INT) WITH (topc = 'y')", "1:31: stream x: no option topc; there are topic, key", "did you mean topic?"),
        ("CREATE STREAM x (a INT) WITH (topic = 'y', topic = 'y')", "1:44: stream x: option topic is there twice", ""),
        ("CREATE STREAM x (a INT) WITH (topic = y)", "1:39: expected a value: 'text', a number", ""),
        ("CREATE STREAM x (a INT) WITH (topic = 1)", "1:31: stream x: expected topic to be text in quotes; found 1", ""),
        ("CREATE STREAM x (a INT) WITH (topic = '%')", "1:1: stream x: expected a topic of", ""),
        ("CREATE STREAM x (a INT) WITH (format = 'xml')", "1:31: stream x: expected format to be 'json', 'confluent-json', 'text', 'debezium' or 'avro'", ""),
        ("CREATE STREAM x (a INT) WITH (format = 'avro')", "1:31: stream x: format = 'avro' and a schema belong together", "schema = "),
        ("CREATE STREAM x (a INT) WITH (schema = '{}')", "1:31: stream x: format = 'avro' and a schema", ""),
        ("CREATE STREAM x (a INT) WITH (format = 'json', codec = 'json')", "1:31: stream x: format and codec", ""),
        ("CREATE STREAM x (a INT) WITH (delay = 3)", "1:31: stream x: expected delay to be a span of time", ""),
        ("CREATE STREAM x (a INT) WITH (delay = '3 s')", "1:1: stream x: delay, lateness, late", "WATERMARK FOR at AS"),
        ("CREATE STREAM x (a INT) WITH (clock.wild = '3 s')", "1:31: stream x: a clock needs clock.sent", ""),
        ("CREATE STREAM x (a INT) WITH (sequence = 'a')", "1:31: stream x: expected sequence to be a producer and its number", ""),
        ("CREATE STREAM x (a INT PRIMARY KEY)", "1:18: stream x: a stream is facts", "CREATE TABLE"),
        (A.replace(";", " WITH (time = 'at');"), "1:1: stream a: WATERMARK says time already", "leave out time"),
        (A.replace("AS at", "AS x"), "1:59: WATERMARK: expected at again, less an interval", "AS at - INTERVAL 10 SECONDS"),
        (A.replace("AS at", "AS at - 4"), "1:64: expected INTERVAL; found `4`", "INTERVAL 10 SECONDS"),
        (A.replace("AS at", "AS at - INTERVAL 4 MONTHS"), "1:64: expected a duration; found '4 MONTHS'", "10 seconds"),
        (A.replace("WATERMARK", "b AS x + 1, WATERMARK"), "1:39: stream a: only the event time is computed", "compute others in a SELECT"),
        (A.replace("x INT, at TIMESTAMP", "x INT, x AS at"), "1:25: stream a: only the event time is computed", "WATERMARK FOR"),
        (A.replace("at TIMESTAMP", "at AS timestamp_millis(y)"), "1:1: stream a: time `timestamp_millis(y)`: no column y", ""),
        (A.replace("AS at)", "AS at, WATERMARK FOR x AS x)"), "1:63: stream a: expected one WATERMARK; found another", ""),
        ("CREATE TABLE t (a INT)", "1:1: table t: expected a PRIMARY KEY; found none", "PRIMARY KEY (id)"),
        ("CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY)", "1:36: table t: expected one PRIMARY KEY", "PRIMARY KEY (a, b)"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (b))", "1:1: table t: key: no column b; there are a", ""),
        ("CREATE TABLE t (a INT PRIMARY KEY) WITH (key = 'a')", "1:17: table t: PRIMARY KEY and key", ""),
        ("CREATE TABLE t (a INT PRIMARY KEY, at TIMESTAMP, WATERMARK FOR at AS at)", "1:50: table t: only a stream", "never late"),
        (A + "CREATE TABLE A (a INT PRIMARY KEY)", "2:14: A: there is a stream, table or view of that name", ""),
        (A + "CREATE VIEW v AS SELECT x FROM b", "2:32: nothing is called b; there is a", ""),
        (A + "CREATE VIEW v AS SELECT kurtosis(x) AS k FROM a", "2:25: aggregate k `kurtosis(x)`: expected one of", "sum(a) / count(*)"),
        (A + "CREATE VIEW v AS SELECT lag(x, 1, 0) OVER (ORDER BY at) AS k FROM a", "2:25: over k", "coalesce(lag(…) OVER (…), …)"),
        (A + "CREATE VIEW v (y) AS SELECT x FROM a", "2:15: expected AS; found `(`", "SELECT x AS a"),
        (A + "CREATE MATERIALIZED VIEW v AS SELECT x FROM a", "2:8: expected PIPELINE", "leave out MATERIALIZED"),
        ("CREATE STREAM x (a INT NOT NULL)", "1:18: schema 'a INT NOT NULL'", "IS NOT NULL"),
        ("CREATE STREAM x (a TEXT)", "1:18: schema 'a TEXT'", "Spark calls it string"),
        ("CREATE STREAM x (a TIMESTAMPTZ)", "1:18: schema 'a TIMESTAMPTZ'", "Spark calls it timestamp"),
        ("CREATE STREAM x (a VARCHAR)", "1:18: schema 'a VARCHAR'", "Spark calls it string"),
        ("CREATE STREAM x (a TIMESTAMP(3))", "1:18: schema 'a TIMESTAMP(3)'", "leave it out"),
        ("CREATE TABLE x (a INT PRIMARY KEY, FOREIGN KEY (a) REFERENCES b (a))", "1:36: schema 'FOREIGN KEY", "taken as it is"),
        (A + "CREATE VIEW v SELECT x FROM a", "2:15: expected AS; found `SELECT`", ""),
        (A + "CREATE VIEW v AS", "2:17: expected a query; found the end", "SELECT"),
        (A + "CREATE VIEW v AS SELECT x FROM a EMIT FINAL", '2:1: view v: emit="final" needs an end', "tumble(TABLE"),
        (A + "CREATE VIEW v AS SELECT x FROM a EMIT", "2:38: expected CHANGES or FINAL; found the end", ""),
        (A + "CREATE VIEW v AS SELECT x FROM a EMIT CHANGES EMIT FINAL", "2:47: expected ; or the end; found `EMIT`", ""),
        (A + "CREATE VIEW v AS SELECT x FROM a ALLOWED LATENESS 1 HOUR", "2:51: expected INTERVAL; found `1`", ""),
        (A + "CREATE VIEW v WITH (unbounded = 1) AS SELECT x FROM a", "2:21: view v: expected unbounded to be true or", ""),
        (A + "CREATE VIEW v WITH (to = 'mysql:x') AS SELECT x FROM a", "2:1: views: found 'mysql:x'", ""),
        (A + "CREATE TEMP VIEW v AS SELECT x FROM a EMIT CHANGES", "2:23: temporary view v: nothing comes out", "that read it"),
        (A + "CREATE TEMP VIEW v WITH (key = 'x') AS SELECT x FROM a", "2:20: expected AS; found `WITH`", "no options"),
        (A + "CREATE SINK s INTO 'files:x' FROM v", "2:35: sink s: no view v; there are none", ""),
        (A + "CREATE VIEW v AS SELECT x FROM a;\nCREATE SINK s INTO 'ftp:x' FROM v", "3:1: sink s: ", ""),
        ("CREATE PIPELINE x WITH (bucket = 1)", "1:25: pipeline x: no option bucket; there are log", "did you mean buckets?"),
        ("CREATE PIPELINE x WITH (buckets = true)", "1:25: pipeline x: expected buckets to be a whole number", ""),
        ("CREATE PIPELINE x WITH (buckets = 0)", "1:1: pipeline x: expected a number of buckets above zero", ""),
        ("CREATE PIPELINE x WITH (to = 'mysql:x')", "1:1: views: found", ""),
        (A + "CREATE VIEW v AS\n  SELECT 'x FROM a;\n", "3:10: this quote, bracket or comment is not closed", ""),
        (A + "CREATE VIEW v AS /* SELECT x FROM a;\n", "2:18: this quote, bracket or comment is not closed", ""),
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_at_its_line_and_column(script: str, message: str, hint: str) -> None:
    with pytest.raises(PlanError) as error:
        load_script(script, "f.sql", "f")
    assert error.value.message.startswith("f.sql:" + message)
    assert hint in error.value.hint


def test_a_script_is_cut_by_its_tokens() -> None:
    script = dedent("""\
        a ';' "x;" `b;` -- c;
        /* d; */;; e
        """)
    assert [(each.text, each.ended) for each in cut(script)] == [("a ';' \"x;\" `b;`", True), ("e", False)]
    assert str(cut(script, "f")[1].place) == "f:2:12"


def test_words_that_only_look_like_an_ending_are_names() -> None:
    made = load_script(
        "CREATE STREAM s (`emit` INT, allowed INT); CREATE VIEW v AS SELECT allowed, `emit` FROM s WHERE allowed > 1 AND `emit` > 1",
        "f.sql",
        "f",
    )
    assert made.views["v"].columns == ("allowed", "emit")


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.sql").write_bytes(b"CREATE \xff")
    with pytest.raises(PlanError, match="not UTF-8"):
        load_pipeline(tmp_path / "x.sql")
