"""Pipelines: what is defined, what is refused, and what a definition's fingerprint stands for."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.duration_pb2 import Duration  # type: ignore[import-untyped]

from millstream.codec import Avro, Json, Text
from millstream.errors import ConfigError, PlanError, UnknownView, ViewBehind, ViewError, ViewStoreUnavailable
from millstream.framed import Confluent
from millstream.load import load_pipeline
from millstream.pipeline import Pipeline
from millstream.relation.nodes import Column, EventTime, Sequence, Source
from millstream.relation.relation import Relation
from millstream.relation.source import Clock
from millstream.store import open_writer
from millstream.store.contract import Batch, Target
from millstream.window import tumbling

CLICK = "user_id long, page string, at timestamp, sent_at timestamp, got_at timestamp"
AVRO = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "page", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def source(relation: Relation) -> Source:
    assert isinstance(relation.node, Source)
    return relation.node


def shop(**options: Any) -> Pipeline:
    """The pipeline whose fingerprint is pinned."""
    made = Pipeline("shop", **options)
    clicks = made.stream(
        "clicks",
        CLICK,
        time="at",
        delay="10 seconds",
        late="correct",
        lateness="5m",
        clock=Clock("sent_at"),
        idle="1 minute",
    )
    users = made.table("users", "id long, name string, country string", key="id")
    big = clicks.where("page <> '/'")
    made.view("per_page", big.group_by("page", tumbling("at", "1 minute")).agg(n="count(*)"), emit="final")
    made.view("countries", users.group_by("country").agg(people="count(*)"))
    return made


def test_a_pipeline_has_its_places_by_its_name() -> None:
    made = Pipeline("my-shop_2")
    assert (made.log, made.to, made.checkpoint) == (
        "sqlite:millstream.db",
        "sqlite:my-shop_2.views.db",
        "my-shop_2.checkpoint",
    )
    assert (made.kafka, made.buckets) == ({}, 8)
    given = Pipeline("shop", log="kafka://k:9092", to="sqlite:v.db", checkpoint="c", kafka={"a": "b"}, buckets=4)
    assert (given.log, given.to, given.checkpoint, given.kafka, given.buckets) == (
        "kafka://k:9092", "sqlite:v.db", "c", {"a": "b"}, 4,
    )  # fmt: skip


def test_a_stream_is_a_source_with_the_topic_of_its_name() -> None:
    made = Pipeline("shop")
    clicks = made.stream("clicks", "page string, at timestamp")
    assert clicks.node == Source("stream", "clicks", "clicks", (Column("page", "string"), Column("at", "timestamp")))
    assert made.streams == {"clicks": clicks}
    assert source(made.stream("other", "page string", topic="clicks-v2.eu", key="PAGE")).topic == "clicks-v2.eu"
    assert source(made.streams["other"]).key == ("page",)


def test_a_stream_says_how_it_tells_time() -> None:
    made = Pipeline("shop")
    plain = source(made.stream("a", CLICK, time="AT"))
    assert plain.time == EventTime("at")
    full = source(
        made.stream(
            "b",
            CLICK,
            time="at",
            delay="10s",
            lateness=timedelta(minutes=5),
            late="correct",
            ahead="2 hours",
            idle=None,
            clock=Clock("sent_at", received="Got_At", wild="2h"),
            sequence=("_key", "user_id + 1"),
        )
    )
    assert full.time == EventTime(
        "at",
        delay=timedelta(seconds=10),
        lateness=timedelta(minutes=5),
        late="correct",
        ahead=timedelta(hours=2),
        idle=None,
        sent="sent_at",
        received="got_at",
        wild=timedelta(hours=2),
    )
    assert full.sequence == Sequence("_key", "user_id + 1")


def test_a_table_has_a_key() -> None:
    made = Pipeline("shop")
    users = made.table("users", "id long, country string, name string", key=("Country", "id"), topic="people")
    assert source(users).key == ("country", "id")
    assert (source(users).kind, source(users).topic, source(users).time) == ("table", "people", None)
    assert made.tables == {"users": users}


def test_a_codec_is_json_text_or_avro() -> None:
    made = Pipeline("shop")
    assert source(made.stream("a", CLICK, codec=Json())).codec == "json"
    assert source(made.stream("b", "line string", codec="text")).codec == "text"
    framed = Confluent("http://registry:8081", "d-value", kind="json")  # which nobody asks
    assert source(made.stream("d", CLICK, codec=framed)).codec == "confluent-json"
    with pytest.raises(PlanError, match=r"stream e: .* framed .* JSON or Avro; found protobuf") as caught:
        made.stream("e", CLICK, codec=Confluent("http://registry:8081", "e-value", kind="protobuf", message=Duration))
    assert "appends JSON" in caught.value.hint
    assert source(made.stream("c", "line STRING", codec=Text())).codec == "text"


def test_an_avro_schema_is_kept_as_canonical_json_however_it_is_given() -> None:
    made = Pipeline("shop")
    shuffled = json.dumps(dict(reversed(AVRO.items())), indent=2)
    given: list[Any] = [AVRO, shuffled, Avro(AVRO)]
    sources = [
        source(made.stream(f"s{index}", "page string, at timestamp", codec=each)) for index, each in enumerate(given)
    ]
    assert {each.codec for each in sources} == {"avro"}
    assert {each.avro_schema for each in sources} == {json.dumps(AVRO, sort_keys=True, separators=(",", ":"))}
    assert source(made.table("t", "page string", key="page", codec=AVRO)).codec == "avro"


def test_a_view_knows_its_key_and_its_store() -> None:
    made = shop()
    per_page, countries = made.views["per_page"], made.views["countries"]
    assert (per_page.key, per_page.emit, per_page.to) == (("page", "window_start"), "final", "sqlite:shop.views.db")
    assert (countries.key, countries.emit, countries.pipeline) == (("country",), "changes", "shop")
    assert countries.columns == ("country", "people")
    clicks = made.streams["clicks"]
    assert made.view("all_clicks", clicks).key == ()
    users = made.tables["users"]
    assert made.view("elsewhere", users, to="sqlite:x.db", key=("NAME", "id")).to == "sqlite:x.db"
    assert made.views["elsewhere"].key == ("name", "id")
    assert made.view("without", made.tables["users"], key=()).key == ()


def test_a_view_that_is_kept_nowhere_has_nothing_to_read_and_another_fingerprint(tmp_path: Path) -> None:
    made = shop(to=f"sqlite:{tmp_path}/views.db")
    users, before = made.tables["users"], made.fingerprint()
    passing, kept = made.view("passing", users, to="nowhere"), made.view("kept", users)
    assert (passing.kept, passing.to, passing.where) == (False, made.to, "nowhere")
    assert (kept.kept, kept.where) == (True, made.to)
    assert made.describe()["views"]["passing"]["to"] == "nowhere"
    for read in (passing.to_arrow, passing.to_polars, lambda: passing.get(1)):
        with pytest.raises(UnknownView, match="view passing of pipeline shop is kept nowhere"):
            read()
    del made.views["kept"]
    among = made.fingerprint()
    made.views["passing"] = replace(passing, kept=True)
    assert len({before, among, made.fingerprint()}) == 3
    with pytest.raises(PlanError, match="no store refuses its rows") as error:
        made.view("picky", users, to="nowhere", refused="dead_letter")
    assert error.value.hint == "a sink has a refused= of its own"


class Wrong:
    """What is refused, each with a new pipeline."""

    def __init__(self) -> None:
        self.p = Pipeline("p")
        self.clicks = self.p.stream("clicks", CLICK, time="at")
        self.users = self.p.table("users", "id long, name string", key="id")


@pytest.mark.parametrize(
    ("build", "message", "hint"),
    [
        (lambda _: Pipeline("no spaces"), "pipeline 'no spaces': expected a name of 1 to 63 letters", ""),
        (lambda _: Pipeline(""), "pipeline '': expected a name", ""),
        (lambda _: Pipeline("x" * 64), "expected a name of 1 to 63", ""),
        (lambda _: Pipeline("x", dead_letters=-1), "expected dead_letters to be how many are kept; found -1", ""),
        (lambda _: Pipeline("x", buckets=0), "expected a number of buckets above zero; found 0", ""),
        (lambda w: w.p.stream("my stream", CLICK), "stream 'my stream': expected a name", ""),
        (lambda w: w.p.stream("clicks", CLICK), "stream clicks: there is a stream of that name already, defined at ", ""),
        (lambda w: w.p.table("Clicks", CLICK, key="page"), "table Clicks: there is a stream of that name already", ""),
        (lambda w: w.p.stream("s", "page strng"), "stream s: schema 'page strng': expected a Spark type", "string?"),
        (lambda w: w.p.stream("s", CLICK, topic="a b"), "stream s: expected a topic of 1 to 249", ""),
        (lambda w: w.p.stream("s", CLICK, key="pgae"), "stream s: key: no column pgae; there are user_id, page", "page?"),
        (lambda w: w.p.stream("s", CLICK, time="page"), "stream s: time: expected a column of type timestamp; found page string", "timestamp_millis(page) AS at"),
        (lambda w: w.p.stream("s", CLICK, time="timestamp_millis(user_id)"), "expected a column or an expression with a name", "AS name"),
        (lambda w: w.p.stream("s", CLICK, time="timestamp_millis(user_id) AS at"), "stream s: time: there is a column at already", "a name of its own"),
        (lambda w: w.p.stream("s", CLICK, time="timestamp_millis(user_i) AS t"), "stream s: time `timestamp_millis(user_i)`: no column user_i", "user_id"),
        (lambda w: w.p.stream("s", CLICK, time="timestamp_millis(user_id) AS t", clock=Clock("at")), "clock corrects a column", ""),
        (lambda w: w.p.stream("s", CLICK, time="when"), "stream s: time: no column when; there are user_id", ""),
        (lambda w: w.p.stream("s", CLICK, time="at", delay="1 month"), "'month' is not always the same length", "duration"),
        (lambda w: w.p.stream("s", CLICK, delay="1 minute"), "about event time, and it has none", 'time="at"'),
        (lambda w: w.p.stream("s", CLICK, late="route"), "about event time, and it has none", 'time="at"'),
        (lambda w: w.p.stream("s", CLICK, idle=None), "about event time, and it has none", 'time="at"'),
        (lambda w: w.p.stream("s", CLICK, clock=Clock("sent_at")), "about event time, and it has none", 'time="at"'),
        (lambda w: w.p.stream("s", CLICK, time="at", idle="0s"), "idle: expected a duration above zero", ""),
        (lambda w: w.p.stream("s", CLICK, time="at", late="keep"), 'expected late to be "drop" or "route" or "correct"; found \'keep\'', ""),
        (lambda w: w.p.stream("s", CLICK, time="at", late="correct"), 'found late="correct" with a lateness of 0 seconds', "amends"),
        (lambda w: w.p.stream("s", CLICK, time="at", lateness="5m"), 'found late="drop" with a lateness of 5 minutes', "amends"),
        (lambda w: w.p.stream("s", CLICK, time="at", clock=Clock("page")), "clock, sent: expected a column of type timestamp", ""),
        (lambda w: w.p.stream("s", CLICK, time="at", clock=Clock("sent_at", "x")), "clock, received: no column x", ""),
        (lambda w: w.p.stream("s", CLICK, sequence="page"), "expected sequence to be a producer and its number", ""),
        (lambda w: w.p.stream("s", CLICK, sequence=("_key", "nr")), "stream s: sequence `nr`: no column nr", ""),
        (lambda w: w.p.stream("s", CLICK, codec="text"), "text is one column of type string; found user_id long, page", ""),
        (lambda w: w.p.stream("s", "n int", codec="text"), "text is one column of type string; found n int", ""),
        (lambda w: w.p.stream("s", CLICK, codec="xml"), 'expected codec to be "json", "confluent-json", "text", "debezium" or an Avro schema; found \'xml\'', ""),
        (lambda w: w.p.stream("s", CLICK, codec=3), "or an Avro schema; found 3", ""),
        (lambda w: w.p.stream("s", CLICK, codec={"type": "record"}), "found not an Avro schema", ""),
        (lambda w: w.p.stream("s", "pages string", codec=AVRO), "no field pages in the Avro record; there are at, page", ""),
        (lambda w: w.p.stream("s", "page string", codec={"type": "string"}), "no field page in the Avro record; there are none", ""),
        (lambda w: w.p.stream("s", "page string", codec=Avro(AVRO, AVRO)), "or an Avro schema; found a reader's schema", ""),
        (lambda w: w.p.table("t", CLICK, key="idd"), "table t: key: no column idd", ""),
        (lambda w: w.p.table("t", CLICK, key=()), "table t: expected at least one key column", ""),
        (lambda w: w.p.table("t", CLICK, key=("page", "Page")), "table t: key: the column Page is there twice", ""),
        (lambda w: w.p.view("1st", w.clicks), "view '1st': expected a name of 1 to 63", ""),
        (lambda w: w.p.view("a-b", w.clicks), "view 'a-b': expected a name", ""),
        (lambda w: w.p.view("Millstream_x", w.clicks), "not beginning with a digit, millstream or sqlite_", ""),
        (lambda w: w.p.view("sqlite_x", w.clicks), "not beginning with a digit, millstream or sqlite_", ""),
        (lambda w: (w.p.view("v", w.clicks), w.p.view("V", w.users)), "view V: there is one of that name already, defined at ", ""),
        (lambda w: w.p.view("v", w.clicks.group_by("page")), "view v: expected a relation; found Grouped", ".agg"),
        (lambda w: Pipeline("other").view("v", w.clicks), "view v: stream clicks (at ", ""),
        (lambda w: w.p.view("v", w.clicks, emit="never"), 'expected emit to be "changes" or "final"; found \'never\'', ""),
        (lambda w: w.p.view("v", w.clicks, refused="no"), 'expected refused to be "stop" or "dead_letter"; found \'no\'', ""),
        (lambda w: w.p.view("v", w.clicks, emit="final"), "there is no window", "tumbling"),
        (lambda w: w.p.view("v", w.users, key="nam"), "view v: key: no column nam", "did you mean name?"),
        (lambda w: w.p.view("v", w.clicks, key="page"), "view v: its rows are told apart by where in the log", "group_by"),
        (lambda w: w.p.sink("s", w.p.view("v", w.clicks), "topic:clicks"), "sink s: topic clicks is read by this pipeline", "another topic"),
        (lambda w: w.p.sink("s", w.p.view("v", w.clicks), f"topic:users@{w.p.log}"), "sink s: topic users is read by this pipeline", ""),
        (
            lambda w: (w.p.sink("s", w.p.view("v", w.clicks), "topic:later"), w.p.table("t", CLICK, key="page", topic="later")),
            "table t: sink s: topic later is read by this pipeline",
            "",
        ),
        (lambda w: w.p.stream("s", CLICK, topic="clicks"), "stream s: topic clicks is stream clicks already", "use clicks"),
        (lambda w: w.p.table("t", CLICK, key="page", topic="users"), "table t: topic users is table users already", ""),
        (lambda w: w.p.view("v", w.users.select("name"), key="id"), "view v: key: no column id; there are name", ""),
    ],
)  # fmt: skip
def test_a_definition_that_does_not_hold_together_is_refused_in_its_line(build: Any, message: str, hint: str) -> None:
    wrong = Wrong()
    with pytest.raises(PlanError) as caught:
        build(wrong)
    place, _, said = caught.value.message.partition(": ")
    assert place.endswith(f"test_pipeline.py:{build.__code__.co_firstlineno}")
    assert message in said
    assert hint in caught.value.hint
    assert (list(wrong.p.streams), list(wrong.p.tables)) == (["clicks"], ["users"])


def test_the_same_name_twice_is_refused_with_the_first_place() -> None:
    made = shop()
    first = made.views["countries"].place
    assert 'made.view("countries"' in Path(__file__).read_text().splitlines()[first.line - 1]
    with pytest.raises(PlanError, match=f"defined at .*test_pipeline.py:{first.line}$"):
        made.view("countries", made.streams["clicks"])


def test_a_pipeline_without_views_is_not_valid() -> None:
    shop().validate()
    made = Pipeline("empty")
    made.stream("clicks", CLICK)
    with pytest.raises(
        PlanError, match=r"test_pipeline.py:\d+: pipeline empty: expected at least one view; found none"
    ):
        made.validate()


def test_a_description_is_json_and_says_everything() -> None:
    described = shop().describe()
    assert json.loads(json.dumps(described)) == described
    assert described["fingerprint"] == shop().fingerprint()
    assert described["streams"]["clicks"]["columns"]["page"] == "string"
    assert described["streams"]["clicks"]["time"]["lateness"] == "5 minutes"
    assert described["tables"]["users"]["key"] == ["id"]
    view = described["views"]["per_page"]
    assert (view["emit"], view["key"], view["to"]) == ("final", ["page", "window_start"], "sqlite:shop.views.db")
    assert "group by page, tumbling(at, 1 minute): n = count(*)" in view["plan"]


GOLDEN = "802ca47cfd73b2e0"


def test_the_fingerprint_of_a_definition_never_changes() -> None:
    """A checkpoint is refused by another fingerprint: a change here makes every user rebuild."""
    assert shop().fingerprint() == GOLDEN


def test_the_fingerprint_is_the_same_in_another_process() -> None:
    code = "import tests.test_pipeline as t; print(t.shop().fingerprint())"
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent.parent,
        )  # fmt: skip
        assert done.stdout.strip() == GOLDEN


def test_the_fingerprint_does_not_ask_where_things_are() -> None:
    moved = shop(log="sqlite:other.db", to="sqlite:y.db", checkpoint="c", kafka={"a": "b"})
    assert moved.fingerprint() == GOLDEN
    moved.stream("unused", CLICK)
    assert moved.fingerprint() == GOLDEN


def fingerprint(
    *, buckets: int = 8, emit: Any = "changes", where: str = "amount > 1", key: Any = None, **stream: Any
) -> str:
    made = Pipeline("p", buckets=buckets)
    clicks = made.stream("clicks", "page string, amount double, at timestamp", **{"time": "at", **stream})
    grouped = clicks.where(where).group_by("page", tumbling("at", "1m")).agg(n="count(*)")
    made.view("v", grouped, emit=emit, key=key)
    return made.fingerprint()


def test_whatever_decides_state_changes_the_fingerprint() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"buckets": 16},
        {"emit": "final"},
        {"where": "amount > 2"},
        {"key": "page"},
        {"topic": "other"},
        {"delay": "1s"},
        {"late": "route"},
        {"late": "correct", "lateness": "1m"},
        {"ahead": "2h"},
        {"idle": None},
        {"clock": Clock("at")},
        {"sequence": ("_key", "amount")},
        {"key": "page", "codec": {**AVRO, "fields": [*AVRO["fields"], {"name": "amount", "type": "double"}]}},
    ]
    found = [fingerprint(**variant) for variant in variants]
    assert len(set(found)) == len(variants)
    assert found == [fingerprint(**variant) for variant in variants]


def test_a_default_that_is_said_is_a_default() -> None:
    assert fingerprint(delay="0 seconds", ahead="60 minutes", idle="30s", late="drop", codec="json") == fingerprint()


def test_the_order_of_views_does_not_matter() -> None:
    made, other = Pipeline("p"), Pipeline("p")
    for pipeline, names in ((made, "ab"), (other, "ba")):
        clicks = pipeline.stream("clicks", CLICK)
        for name in names:
            pipeline.view(name, clicks)
    assert made.fingerprint() == other.fingerprint()


def test_nothing_of_spark_is_loaded_by_a_definition() -> None:
    code = "import sys, tests.test_pipeline as t; t.shop().describe(); assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


def write(folder: Path, text: str, name: str = "shop.py") -> Path:
    file = folder / name
    file.write_text(inspect.cleandoc(text))
    return file


def test_the_one_pipeline_of_a_file_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "NAME = 'shop'", "beside.py")
    file = write(
        tmp_path,
        """
        from millstream.pipeline import Pipeline
        from beside import NAME

        shop = same = Pipeline(NAME)
        clicks = shop.stream("clicks", "page string")
        shop.view("v", clicks.where("page <> '/'"))
        if __name__ == "__main__":
            raise SystemExit("not when loaded")
        """,
    )
    before = list(sys.path)
    loaded = load_pipeline(file)
    assert (loaded.name, list(loaded.views)) == ("shop", ["v"])
    assert sys.path == before
    assert str(loaded.views["v"].place) == f"{file}:6"
    monkeypatch.chdir(tmp_path)
    assert str(load_pipeline("shop.py").views["v"].place) == "shop.py:6"
    assert str(load_pipeline(file).views["v"].place) == "shop.py:6"


def test_one_of_several_pipelines_is_picked_by_its_name(tmp_path: Path) -> None:
    file = write(tmp_path, "from millstream.pipeline import Pipeline\na = Pipeline('one')\nb = Pipeline('two')")
    with pytest.raises(PlanError) as caught:
        load_pipeline(file)
    assert caught.value.message == f"{file}: expected one pipeline; found a, b"
    assert caught.value.hint == f"say which: {file}:a"
    assert load_pipeline(f"{file}:b").name == "two"
    with pytest.raises(PlanError, match="no pipeline c; there are a, b"):
        load_pipeline(f"{file}:c")


def test_a_file_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="expected one pipeline; found none"):
        load_pipeline(write(tmp_path, "x = 1"))
    with pytest.raises(PlanError, match="there is no such file"):
        load_pipeline(tmp_path / "none.py")
    with pytest.raises(PlanError, match=r"none\.py: there is no such file"):
        load_pipeline(f"{tmp_path}/none.py:shop")


@pytest.mark.parametrize(
    ("text", "line", "message", "cause"),
    [
        ("x = 1\n\nx / 0", 3, "ZeroDivisionError: division by zero", ZeroDivisionError),
        ("def f():\n    return {}['a']\n\nf()", 2, "KeyError: 'a'", KeyError),
        ("x = 1\nx = = 2", 2, "SyntaxError", SyntaxError),
        ("import no_such_module", 1, "ModuleNotFoundError", ModuleNotFoundError),
        ("import json\n\njson.loads('{')", 3, "JSONDecodeError", ValueError),
        ("\nraise SystemExit('over')", 2, "SystemExit: over", SystemExit),
        ("\nfrom millstream.store import open_writer\nopen_writer('what')", 3, "views: found 'what'", ConfigError),
    ],
)
def test_an_error_in_a_file_names_its_line_and_keeps_its_cause(
    tmp_path: Path, text: str, line: int, message: str, cause: type[BaseException]
) -> None:
    file = tmp_path / "shop.py"
    file.write_text(text)
    with pytest.raises(PlanError) as caught:
        load_pipeline(file)
    assert caught.value.message.startswith(f"{file}:{line}: ")
    assert message in caught.value.message
    assert isinstance(caught.value.__cause__, cause)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda _: Pipeline("p", to="mysql://x"), "views: found 'mysql://x', expected sqlite:PATH or"),
        (lambda _: Pipeline("p", log="rabbit://x"), "log: found 'rabbit://x', expected sqlite:PATH or"),
        (lambda _: Pipeline("p", kafka={"sasl.password": "word"}), "kafka.sasl.password"),
        (lambda made: made.view("v", made.streams["clicks"], to="nothing"), "views: found 'nothing'"),
    ],
)
def test_a_wrong_address_is_refused_in_its_line(build: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        build(shop())
    assert f"test_pipeline.py:{build.__code__.co_firstlineno}: " in caught.value.message
    assert message in caught.value.message
    assert isinstance(caught.value.__cause__, ConfigError)


def test_a_plan_error_in_a_file_passes_as_it_is(tmp_path: Path) -> None:
    file = write(tmp_path, "from millstream.pipeline import Pipeline\n\nPipeline('a').stream('s', 'page strng')")
    with pytest.raises(PlanError) as caught:
        load_pipeline(file)
    assert caught.value.message.startswith(f"{file}:3: stream s: ")
    assert caught.value.hint == "did you mean string?"


def test_a_view_reads_what_its_store_holds(tmp_path: Path) -> None:
    made = shop(to=f"sqlite:{tmp_path}/views.db")
    view = made.views["countries"]
    with pytest.raises(ViewStoreUnavailable):
        view.to_polars()
    schema = pa.schema([("country", pa.string()), ("people", pa.int64())])
    rows = [{"country": "NL", "people": 2, "_weight": 1}, {"country": "PT", "people": 1, "_weight": 1}]
    changes = pa.Table.from_pylist(rows, schema.append(pa.field("_weight", pa.int64())))
    with open_writer(view.to) as sink:
        fence = sink.claim("shop")
        sink.prepare("shop", made.fingerprint(), [Target(view.name, schema, view.key)])
        assert sink.commit(Batch("c", 0, fence, offsets={"users": {0: 2}}, changes={view.name: changes}))
        sink.release()
    expected = [{"country": "NL", "people": 2}, {"country": "PT", "people": 1}]
    assert view.get("NL") == expected[0]
    assert view.get("XX") is None
    assert view.get("NL", at_least={"users": {0: 2}}, timeout=0) == expected[0]
    with pytest.raises(ViewBehind, match=r"users/0 at 2 of 5 \(3 behind\)"):
        view.get("NL", at_least={"users": {0: 5}}, timeout=0.01)
    assert view.to_arrow().to_pylist() == expected
    assert view.to_polars().to_dicts() == expected
    assert view.to_pandas().to_dict("records") == expected
    with pytest.raises(ViewError, match="found a key of 2, expected 1: country"):
        view.get("NL", 2)

    class Session:
        def createDataFrame(self, rows: Any) -> Any:  # noqa: N802
            return ("frame", rows)

    assert view.to_spark(Session()) == ("frame", view.to_arrow())


@pytest.mark.parametrize(
    ("name", "ours"), [("toPandas", "to_pandas()"), ("show", "to_polars()"), ("nonsense", "a view has no")]
)
def test_a_name_that_others_have_for_reading_is_told_with_ours(name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(ours)):
        getattr(shop().views["countries"], name)


def test_a_view_that_is_not_there_is_told_with_those_that_are() -> None:
    pipeline = Pipeline("p")
    pipeline.view("spend", pipeline.stream("s", "n int").group_by().agg(k="sum(n)"))
    with pytest.raises(UnknownView, match="no view 'spendd'; there are spend") as caught:
        pipeline.views["spendd"]
    assert caught.value.hint == "did you mean spend?"
    assert pipeline.views.get("spendd") is None
