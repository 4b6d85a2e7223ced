"""A PostgreSQL database keeps the contract, and what only it promises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from millstream.address import PostgresAddress, parse_address
from millstream.cli import execute
from millstream.config import Settings
from millstream.doctor import Check, checks
from millstream.errors import ConfigError, MillstreamError, PipelineError, PlanError, ViewError, ViewStoreUnavailable
from millstream.pipeline import Pipeline
from millstream.store import judge_at, open_reader, open_writer
from millstream.store.contract import TIME, Batch, StoreReader, StoreWriter, Target, Told
from millstream.store.postgres.reader import PostgresReader
from millstream.store.postgres.server import FORMAT
from millstream.store.postgres.writer import postgres_writer
from millstream.store.rejects import Judge
from millstream.testing import PostgresServer
from tests.contracts.store import (
    BAG,
    BEAT,
    LETTERS,
    NOON,
    PAIRS,
    PIPELINE,
    TOTALS,
    Batches,
    StoreContract,
    changes,
    counts,
    flood_of_beats,
    flood_of_letters,
    rejects,
    rows,
)
from tests.contracts.versions import VersionContract
from tests.store.stopped import is_stopped
from tests.waiting import until


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """A database whose own order of text is not that of code points."""
    name = f"sink_{uuid.uuid4().hex}"
    with psycopg.connect(postgres.address, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
    return postgres.address.replace("/postgres", f"/{name}")


@pytest.fixture
def address(database: str) -> str:
    """A schema of its own for each test."""
    return f"{database}?schema=Test-{uuid.uuid4().hex}"


@pytest.fixture
def writer(address: str) -> Iterator[StoreWriter]:
    with open_writer(address) as opened:
        yield opened


@pytest.fixture
def again(address: str) -> Callable[[], StoreWriter]:
    return lambda: open_writer(address)


@pytest.fixture
def again_store(address: str) -> Callable[[], StoreReader]:
    return lambda: open_reader(address)


@pytest.fixture
def store(writer: StoreWriter, address: str) -> Iterator[StoreReader]:
    with open_reader(address) as opened:
        yield opened


@pytest.fixture
def judge(address: str) -> Judge | None:
    return judge_at(address)


@pytest.fixture
def refusable() -> set[str]:
    """What PostgreSQL has no place for."""
    return {
        "NUL in text", "NUL in a list", "NUL in a struct", "NUL in a map", "NUL in a map's key", "before all calendars",
        "before time itself", "4714 BC",
        "the last moment", "first day", "last day", LETTERS, "id \0",
    }  # fmt: skip


class TestPostgres(StoreContract, VersionContract):
    """Every promise of the contract."""


def ask(address: str, sql: str) -> list[Any]:
    """As anyone else would, with the default schema of the test."""
    place, _, schema = address.partition("?schema=")
    with psycopg.connect(place) as db:
        db.execute(f'SET search_path TO "{schema}"')
        db.execute("SET TIME ZONE 'UTC'")
        answer = db.execute(sql)
        return answer.fetchall() if answer.description else []


# addresses and secrets

SECRET = "canary-7f3a"


def test_an_address_is_read_with_everything_that_libpq_knows() -> None:
    read = parse_address(
        "postgresql://me@[::1]:5433,db.example/shop?sslmode=require&schema=Live%20Data&options=-c%20x%3D1"
    )
    assert isinstance(read, PostgresAddress)
    assert read.options == {
        "user": "me", "host": "::1,db.example", "port": "5433,", "dbname": "shop", "sslmode": "require", "options": "-c x=1",
    }  # fmt: skip
    assert read.schema == "Live Data"


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:${env:WORD}@h/db",
        "postgresql://me@h/db?password=${env:WORD}",
        "postgresql://me:${file:FILE}@h/db",
    ],
)
def test_a_password_is_found_where_the_address_says(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", SECRET)
    (tmp_path / "a word").write_text(SECRET + "\n")
    read = parse_address(address.replace("FILE", str(tmp_path / "a word")))
    assert isinstance(read, PostgresAddress)
    assert read.resolved()["password"] == SECRET
    assert SECRET not in repr(read) + str(read)
    assert (read.options["user"], read.options["host"], read.options["dbname"]) == ("me", "h", "db")


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{SECRET}@h/db", f"postgresql://me@h/db?password={SECRET}", f"postgresql://me:a{SECRET}${{env:HOME}}@h/db",
        f"postgres://me:{SECRET}@h/db", f"postgresql:me:{SECRET}@h/db?password={SECRET}", f"postgresql://me@h/db?sslpassword={SECRET}",
        f"mysql://me:{SECRET}@h/@/db",
        f"postgresql://me:x/{SECRET}@h/db",
        f"postgresql://me:{SECRET}?x@h/db",
    ],
)  # fmt: skip
def test_a_password_in_an_address_is_refused_and_not_shown(address: str) -> None:
    shop = Pipeline("shop")
    clicks = shop.stream("clicks", "page string")
    for define in (
        lambda: open_writer(address),
        lambda: open_reader(address),
        lambda: Pipeline("shop", to=address),
        lambda: shop.view("pages", clicks, to=address),
    ):
        with pytest.raises((ConfigError, PlanError)) as caught:  # in a definition it has the line
            define()
        assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_password_is_never_printed(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(postgres.address, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS locked")
        db.execute(f"CREATE ROLE locked LOGIN PASSWORD '{SECRET}'")
        (hba,) = db.execute("SHOW hba_file").fetchone() or ("",)
        path, text = Path(hba), Path(hba).read_text()
        path.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{text}")
        db.execute("SELECT pg_reload_conf()")
        db.execute("CREATE SCHEMA IF NOT EXISTS locked AUTHORIZATION locked")
    address = f"postgresql://locked:${{env:SHOP_PASSWORD}}@127.0.0.1:{postgres.port}/postgres"
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    seen: list[str] = []
    with open_writer(f"{address}?schema=locked") as writer:
        Batches(writer).commit(BAG, ("home", 1.0, 1))
        seen += [repr(vars(writer)), repr(writer.entries("shop"))]
    seen += map(repr, ask(f"{postgres.address}?schema=locked", "SELECT * FROM millstream_lease"))
    wrong: list[MillstreamError] = []
    with pytest.raises(ViewError, match="permission denied") as denied:  # no right to make this schema
        open_writer(f"{address}?schema=elsewhere")
    wrong.append(denied.value)
    monkeypatch.setenv("SHOP_PASSWORD", SECRET + "x")
    with pytest.raises(ViewError, match="password authentication failed") as failed:
        open_writer(f"{address}?schema=locked")
    assert not isinstance(failed.value, ViewStoreUnavailable)  # it is there, and would say so again
    wrong.append(failed.value)
    monkeypatch.delenv("SHOP_PASSWORD")
    with pytest.raises(ConfigError, match="no such environment variable") as missing:
        open_writer(f"{address}?schema=locked")
    wrong.append(missing.value)
    seen += ["".join(traceback.format_exception(error)) for error in wrong]
    assert [text for text in seen if SECRET in text] == []


def test_an_option_that_libpq_does_not_know_is_an_error(postgres: PostgresServer) -> None:
    with pytest.raises(ConfigError, match="colour"):
        open_writer(f"{postgres.address}?colour=blue")


def test_a_schema_is_not_made_by_reading(address: str) -> None:
    with pytest.raises(ViewStoreUnavailable, match="no views at postgresql://") as caught:
        open_reader(address)
    assert "millstream run FILE" in caught.value.hint
    open_reader(address, create=True).close()
    with open_reader(address) as store:
        assert store.views() == []


def test_a_database_that_is_not_there_and_one_in_another_encoding_are_named(postgres: PostgresServer) -> None:
    with pytest.raises(ViewError, match='"nowhere" does not exist') as refused:
        open_writer(postgres.address.replace("/postgres", "/nowhere"))
    assert "CREATE DATABASE" in refused.value.hint
    with psycopg.connect(postgres.address, autocommit=True) as db:
        db.execute("CREATE DATABASE old ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    with pytest.raises(ViewError, match="the encoding LATIN1, expected UTF8"):
        open_writer(postgres.address.replace("/postgres", "/old"))


def test_heartbeats_that_are_not_needed_go(address: str) -> None:
    parsed = parse_address(address)
    assert isinstance(parsed, PostgresAddress)
    with postgres_writer(parsed, keep=5) as writer:
        flood_of_beats(writer)


def test_views_of_an_earlier_version_are_brought_up_once_when_they_are_opened_to_write(address: str) -> None:
    with open_writer(address) as writer:
        Batches(writer).commit(BAG, ("home", 1.0, 1))
        writer.release()
    ask(address, "ALTER TABLE millstream_admission DROP COLUMN erased")
    ask(address, "DROP TABLE millstream_heartbeats; UPDATE millstream_format SET version = 1")
    with open_reader(address) as store:
        assert rows(store, "bag") == [("home", 1.0)]
        assert "erased" in store.admission(PIPELINE).column_names
    with ThreadPoolExecutor(4) as pool:
        for each in list(pool.map(lambda _: open_writer(address), range(4))):
            each.close()
    with open_writer(address) as writer:
        batches = Batches(writer)
        batches.next = 1
        batches.commit(BAG, ("home", 1.0, 1), beats=[BEAT])
        assert writer.heartbeats(PIPELINE) == [Told("c1", 1, BEAT)]


def test_views_of_a_later_version_are_refused_and_left_alone(writer: StoreWriter, address: str) -> None:
    ask(address, f"UPDATE millstream_format SET version = {FORMAT + 1}")
    for way in (open_writer, open_reader):
        with pytest.raises(ViewError, match=f"format {FORMAT + 1}, this version reads up to {FORMAT}"):
            way(address)


def test_many_who_open_a_new_schema_at_once_make_it_once(address: str) -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            open_writer(address).close()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []


# names


def test_two_views_that_begin_alike_are_kept_apart(writer: StoreWriter, store: StoreReader) -> None:
    targets = [Target("v" * 60 + end, BAG.schema, key) for key in ((), ("page",)) for end in ("a", "b", "ab")]
    targets = [Target(f"{target.name}{'k' * bool(target.key)}", target.schema, target.key) for target in targets]
    fence = writer.claim("p")
    writer.prepare("p", "f", targets)
    for number in range(2):
        each = {t.name: changes(t, (f"{t.name}-{number}", 1.0, 1)) for t in targets}
        assert writer.commit(Batch("c", number, fence, changes=each))
    for target in targets:
        assert rows(store, target.name) == [(f"{target.name}-0", 1.0), (f"{target.name}-1", 1.0)]


@pytest.mark.parametrize(
    "target",
    [
        Target("v" * 64, BAG.schema), Target("ü" * 32, BAG.schema), Target("v", pa.schema([("c" * 64, pa.int64())])),
        Target("v", pa.schema([("xmin", pa.int64())])), Target("v", pa.schema([("", pa.int64())])),
    ],
)  # fmt: skip
def test_a_name_that_postgresql_would_cut_or_refuse_is_refused_first(
    writer: StoreWriter, store: StoreReader, target: Target
) -> None:
    writer.claim("p")
    with pytest.raises(ViewError, match="has no place for the"):
        writer.prepare("p", "f", [BAG, target])
    assert store.views() == []


def test_a_table_of_someone_else_is_not_taken_for_a_view(writer: StoreWriter, address: str) -> None:
    ask(address, 'CREATE TABLE "Bag" (mine int)')
    writer.claim("p")
    with pytest.raises(ViewError, match="already a table 'bag'"):
        writer.prepare("p", "f", [TOTALS, BAG])


# what people see


def test_anyone_can_query_the_views_with_types_of_their_own(writer: StoreWriter, address: str) -> None:
    target = Target(
        "everything",
        pa.schema(
            [
                ("id", pa.int32()), ("at", TIME), ("day", pa.date32()), ("price", pa.decimal128(12, 2)), ("raw", pa.binary()),
                ("tags", pa.list_(pa.string())), ("real", pa.float64()), ("yes", pa.bool_()), ("long", pa.duration("us")),
            ]
        ),
        ("id",),
    )  # fmt: skip
    fence = writer.claim("p")
    writer.prepare("p", "f", [target, BAG])
    row = (1, NOON, NOON.date(), 12, b"\0x", ["a", "b"], float("nan"), True, timedelta(days=2, seconds=1), 1)
    each = {"everything": changes(target, row), "bag": changes(BAG, ("home", 1.0, 2), ("shop", None, 1))}
    assert writer.commit(Batch("c", 0, fence, changes=each))
    assert ask(
        address, "SELECT at + interval '1 day' > at, day + 1, price * 2, raw, tags ->> 1, yes, long FROM everything"
    ) == [(True, NOON.date() + timedelta(days=1), 24, b"\0x", "b", True, timedelta(days=2, seconds=1))]
    assert ask(address, "SELECT id FROM everything WHERE real = 'NaN' AND tags @> '[\"a\"]'") == [(1,)]
    assert ask(address, "SELECT page, count(*) FROM bag GROUP BY page ORDER BY page") == [("home", 2), ("shop", 1)]
    assert ask(address, "SELECT batch, offsets, committed_at > '2026-01-01' FROM millstream_ledger") == [(0, {}, True)]


def test_text_is_in_the_order_of_code_points_and_keys_are_found_by_index(
    writer: StoreWriter, store: StoreReader
) -> None:
    batches = Batches(writer)
    names = ["b", "B", "a", "ä", "A", "Z", ""]
    batches.commit(TOTALS, *((name, 1, 1.0, 1) for name in names))
    assert [row[0] for row in rows(store, "totals")] == sorted(names)
    assert store.query('SELECT string_agg("user", \',\' ORDER BY "user") FROM totals').rows == [
        (",".join(sorted(names)),)
    ]
    batches.commit(TOTALS, *((f"user {i}", 1, 1.0, 1) for i in range(5000)))
    plan = store.query("EXPLAIN SELECT * FROM totals WHERE \"user\" = 'user 77'").rows
    assert "Index Scan" in "".join(row[0] for row in plan)


def test_keys_with_nulls_are_removed_by_index_too(writer: StoreWriter, store: StoreReader) -> None:
    batches = Batches(writer)
    batches.commit(PAIRS, *((i % 70, None if i % 2 else f"x{i}", i, 1) for i in range(70)), (None, None, 1, 1))
    batches.commit(PAIRS, (3, None, 3, -1), (4, "x4", 4, -1), (None, None, 1, -1))
    assert len(rows(store, "pairs")) == 68
    assert store.get("pairs", [3, None]) is None
    assert store.get("pairs", [5, None]) == {"a": 5, "b": None, "n": 5}


def test_a_query_can_do_nothing_but_read(writer: StoreWriter, store: StoreReader, address: str) -> None:
    batches = Batches(writer)
    batches.commit(BAG, ("home", 1.0, 1))
    for sql in (
        "COPY bag TO PROGRAM 'true'", "DO $$ BEGIN DELETE FROM totals; END $$", "SET TRANSACTION READ WRITE", "BEGIN", "COMMIT",
        "WITH x AS (DELETE FROM millstream_ledger RETURNING 1) SELECT * FROM x", "EXPLAIN ANALYZE DELETE FROM millstream_ledger",
        "SELECT set_config('transaction_read_only', 'off', false)", "SELECT nextval('millstream_views_number_seq')",
        "SELECT 1; COMMIT; DELETE FROM millstream_ledger", "/* SELECT */ DELETE FROM millstream_ledger", "SELECT * INTO x FROM bag",
    ):  # fmt: skip
        with pytest.raises(ViewError):
            store.query(sql)
    assert ask(address, "SELECT batch FROM millstream_ledger") == [(0,)]
    assert store.query(" -- the pages\n (SELECT '100%' AS \"%s\")") == (("%s",), [("100%",)])


def test_the_command_lists_shows_and_queries_views(
    writer: StoreWriter, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(*arguments: str) -> Any:
        capsys.readouterr()
        assert execute(["views", *arguments, "--views", address, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    batches = Batches(writer)
    batches.commit(TOTALS, ("ann", 1, 2.5, 1), ("bob", 2, None, 1))
    listed = {each["name"]: (each["rows"], each["batch"], each["store"]) for each in asked("list")}
    assert listed == {name: (2 if name == "totals" else 0, 0, address) for name in ("totals", "pairs", "bag", "facts")}
    assert asked("show", "totals")[1] == {"user": "bob", "n": 2, "total": None}
    sql = "SELECT sum(n) AS n, max(committed_at) AS at, sum(total::numeric) AS total FROM totals, millstream_ledger"
    (answer,) = asked("query", "totals", sql)
    assert (int(answer["n"]), float(answer["total"]), answer["at"][:2]) == (3, 2.5, "20")
    assert execute(["views", "show", "nowhere", "--views", address]) == 1
    assert "nowhere" in capsys.readouterr().err


# what is refused


def test_text_with_a_nul_is_refused_and_nothing_is_written(writer: StoreWriter, store: StoreReader) -> None:
    batches = Batches(writer)
    batch = batches.batch((BAG, [("a\0b", 1.0, 1)]), (TOTALS, [("ann", 1, 1.0, 1)]))
    with pytest.raises(
        PipelineError, match=r"view 'bag', column 'page': found text with a NUL.*nothing of the batch"
    ) as caught:
        writer.commit(batch)
    assert "replace(" in caught.value.hint
    assert rows(store, "totals") == []


def test_what_is_said_of_a_bad_record_never_stops_a_batch(writer: StoreWriter, store: StoreReader) -> None:
    early = pa.scalar(-(2**62), TIME)
    letter = rejects(("t", 0, 3, None, NOON, "malformed", "found \0 in it"))
    letter = letter.set_column(3, "time", pa.array([early], TIME))
    Batches(writer).commit(BAG, rejects=letter)
    (kept,) = store.dead_letters().to_pylist()
    assert (kept["time"], kept["append_time"], kept["detail"]) == (None, NOON, "found ␀ in it")


def test_a_dead_letter_without_a_reason_is_refused_with_its_whole_batch(
    writer: StoreWriter, store: StoreReader
) -> None:
    batches = Batches(writer)
    letter = rejects(("t", 0, 1, None, None, None, None))
    with pytest.raises(ViewError, match=r'"reason".*nothing was written'):
        writer.commit(batches.batch((BAG, [("home", 1.0, 1)]), rejects=letter))
    assert rows(store, "bag") == []


def test_a_key_too_long_for_an_index_is_refused_and_a_long_row_is_not(writer: StoreWriter, store: StoreReader) -> None:
    batches = Batches(writer)
    long = os.urandom(20_000).hex()
    batches.commit(BAG, (long, 1.0, 1))
    assert rows(store, "bag") == [(long, 1.0)]
    with pytest.raises(ViewError, match="nothing was written") as caught:
        writer.commit(batches.batch((TOTALS, [(long, 1, 1.0, 1)])))
    assert "2,700 bytes" in caught.value.hint


def test_views_that_others_depend_on_are_not_dropped(writer: StoreWriter, store: StoreReader, address: str) -> None:
    batches = Batches(writer)
    batches.commit(TOTALS, ("ann", 1, 1.0, 1))
    ask(address, 'CREATE VIEW mine AS SELECT "user" FROM totals')
    with pytest.raises(ViewError, match="depend"):
        writer.forget("shop")
    assert rows(store, "totals") == [("ann", 1, 1.0)]
    assert ask(address, "SELECT * FROM mine") == [("ann",)]


# the ledger, and connections


def test_dead_letters_are_bounded_and_their_counts_are_exact(address: str) -> None:
    parsed = parse_address(address)
    assert isinstance(parsed, PostgresAddress)
    with postgres_writer(parsed, letters=10) as writer, PostgresReader(parsed) as store:
        flood_of_letters(writer, store)


def test_the_ledger_keeps_the_newest_batches_and_totals_lose_nothing(address: str) -> None:
    parsed = parse_address(address)
    assert isinstance(parsed, PostgresAddress)
    with postgres_writer(parsed, keep=5) as writer, PostgresReader(parsed) as store:
        batches = Batches(writer)
        for checkpoint, number in (("c1", 12), ("c2", 20)):
            batches.checkpoint, batches.next = checkpoint, 0
            for minute in range(number):
                mark = NOON.replace(minute=minute)
                seen = counts(("t", 0, 3, 2, 1, 0, 0, 0, 0, 0, 0, mark), ("t", 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, None))
                batches.commit(BAG, ("home", 1.0, 1), counts=seen)
        kept = "SELECT checkpoint, min(batch), count(*) FROM millstream_ledger GROUP BY 1 ORDER BY 1"
        assert store.query(kept).rows == [("c1", 11, 1), ("c2", 15, 5)]
        assert store.query("SELECT count(*) FROM millstream_admission").rows == [(2 + 5 * 2,)]
        totals = [(row["records"], row["late"], row["watermark"]) for row in store.admission().to_pylist()]
        assert totals == [(96, 32, NOON.replace(minute=19)), (32, 0, None)]
        for checkpoint, each in (("c1", 11), ("c2", 19)):
            assert not writer.commit(batches.batch((BAG, [("home", 1.0, 1)]), checkpoint=checkpoint, batch=each))
        assert len(rows(store, "bag")) == 32


def test_a_writer_and_a_reader_serve_many_threads(writer: StoreWriter, store: StoreReader) -> None:
    batches = Batches(writer)
    problems: list[BaseException] = []

    def guarded(work: Callable[[], Any]) -> None:
        try:
            for _ in range(20):
                work()
        except BaseException as error:
            problems.append(error)

    def turn() -> None:
        batches.commit(BAG, ("home", 1.0, 1))

    threads = [
        threading.Thread(target=guarded, args=(work,)) for work in (turn, writer.renew, store.views, store.views)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert len(rows(store, "bag")) == 20


FORK = """
import os, sys
from millstream.store import open_writer
with open_writer(sys.argv[1]) as writer:
    writer.claim("p")
    session = lambda: writer.engine.server.run(lambda db: db.info.backend_pid)
    ours = session()
    child = os.fork()
    if child == 0:
        writer.renew()
        other = session()
        writer.close()
        os._exit(int(other == ours))
    assert os.waitpid(child, 0)[1] == 0
    writer.renew()
    assert session() == ours
"""


def test_a_connection_opened_before_a_fork_stays_with_the_parent(address: str) -> None:
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", FORK, address], cwd=root, check=True, timeout=60)


def test_a_commit_is_on_disk_even_where_the_server_would_put_it_off(address: str) -> None:
    lazy = address.replace("?", "?options=-c%20synchronous_commit%3Doff&")
    with open_writer(lazy) as writer:
        writer.claim("p")
        (db,) = writer.engine.server._idle  # type: ignore[attr-defined]
        assert db.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_a_closed_store_says_so(address: str) -> None:
    writer = open_writer(address)
    writer.close()
    with pytest.raises(ViewStoreUnavailable, match="closed"):
        writer.claim("p")


# the doctor


def test_the_doctor_looks_at_a_place_for_views(address: str, postgres: PostgresServer) -> None:
    def look(where: str) -> Check:
        (found,) = [check for check in checks(Settings(), spark=False, views=where) if check.name == "views"]
        return found

    assert look(address).found.endswith("(no views yet; they can be made there)")
    open_writer(address).close()
    assert look(address).ok
    assert "PostgreSQL 1" in look(address).found
    with psycopg.connect(postgres.address, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS guest")
        db.execute("CREATE ROLE guest LOGIN")
    guest = look(postgres.address.replace("millstream@", "guest@") + "?schema=theirs")
    assert (guest.ok, "no right to make them" in guest.found, "GRANT" in guest.hint) == (False, True, True)
    gone = look("postgresql://me@127.0.0.1:1/db")
    assert (gone.ok, "check the address" in gone.hint) == (False, True)


def test_a_query_without_an_end_can_be_stopped(writer: StoreWriter, address: str, database: str) -> None:
    asked = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"
    with psycopg.connect(database, autocommit=True) as db:
        begun = lambda _: db.execute(asked).fetchone() == (1,)  # noqa: E731
        assert is_stopped(address, "SELECT pg_sleep(600)", signal.SIGINT, begun)
        until(lambda: db.execute(asked).fetchone() == (0,))
