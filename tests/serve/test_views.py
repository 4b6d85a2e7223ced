"""Reading views over HTTP: filtered, sorted, in pages, and not before they have seen a record."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest

from millstream.load import load_pipeline
from millstream.log import open_log
from millstream.store import Batch, Target, open_writer
from millstream.store.contract import WEIGHT
from tests.serve.client import Server, serving

PIPELINE = """
from millstream import Pipeline

shop = Pipeline("shop", log="sqlite:log.db", to="sqlite:views.db")
clicks = shop.stream("clicks", "user string, n int, at timestamp")
shop.view("users", clicks.group_by("user").agg(n="sum(n)", mean="avg(n)", last="max(at)"), unbounded=True)
shop.view("gone", clicks.group_by("user").agg(n="sum(n)"), to="nowhere", unbounded=True)
"""
SCHEMA = pa.schema(
    [("user", pa.string()), ("n", pa.int64()), ("mean", pa.float64()), ("last", pa.timestamp("us", "UTC"))]
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS = [("ann", 3, 1.5, NOON), ("bob", 10, math.nan, None), ("<script>", 2, 2.0, NOON)]


def commit(folder: Path, batch: int, rows: Sequence[tuple[object, ...]], end: int) -> None:
    """A batch as a run commits it."""
    pipeline = load_pipeline(folder / "shop.py")
    schema = SCHEMA.append(pa.field(WEIGHT, pa.int64()))
    columns = list(zip(*((*row, 1) for row in rows), strict=True)) or [()] * len(schema)
    table = pa.table([pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    with open_writer(f"sqlite:{folder / 'views.db'}") as writer:
        fence = writer.claim("shop", takeover=True)
        writer.prepare("shop", pipeline.fingerprint(), [Target("users", SCHEMA, ("user",))])
        writer.commit(Batch("c1", batch, fence, {"clicks": {0: end}}, changes={"users": table}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    (folder / "shop.py").write_text(PIPELINE)
    (folder / "millstream.toml").write_text("[serve.limits]\nseconds = 5.0\n")
    with open_log(f"sqlite:{folder / 'log.db'}") as log:
        log.create_topic("clicks", 1)
    commit(folder, 0, ROWS, 3)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder, f"sqlite:{folder / 'log.db'}", ["shop.py"]) as server:
        yield server


def test_rows_are_given_with_the_batch_that_they_have_seen(server: Server) -> None:
    answer = server.ask("GET", "/views/users")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert (answer.json["view"], answer.json["batch"]) == ("users", 0)
    script, ann, bob = answer.json["rows"]
    assert ann == {"user": "ann", "n": 3, "mean": 1.5, "last": "2026-01-01T12:00:00.000000Z"}
    assert bob == {"user": "bob", "n": 10, "mean": None, "last": None}
    assert script["user"] == "<script>"


@pytest.mark.parametrize(
    ("query", "users"),
    [
        ("sort=-n", ["bob", "ann", "<script>"]),
        ("sort=-n&limit=1&offset=1", ["ann"]),
        ("user=ann", ["ann"]),
        ("n.gt=2", ["ann", "bob"]),
        ("n.ge=3&n.lt=10", ["ann"]),
        ("user.ne=ann&sort=n", ["<script>", "bob"]),
        ("last.le=2026-01-01T12:00:00Z", ["<script>", "ann"]),
        (f"user={quote(chr(39) + ' OR 1=1 --')}", []),
        ("offset=50", []),
    ],
)
def test_rows_are_filtered_sorted_and_cut(server: Server, query: str, users: list[str]) -> None:
    assert [row["user"] for row in server.ask("GET", f"/views/users?{query}").json["rows"]] == users


@pytest.mark.parametrize(
    "query",
    [
        "nothing=1",
        "sort=nothing",
        "sort=n,n",
        f"sort={quote('n; DROP TABLE users')}",
        f"{quote('n) OR (1')}=1",
        "n=many",
        "n.like=1",
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=1e3",
        "offset=100001",
        "at_least=clicks",
        "at_least=orders/0:1&wait=0",
        "&".join(f"n.ne={n}" for n in range(21)),
    ],
)
def test_what_no_query_is_is_refused(server: Server, query: str) -> None:
    answer = server.ask("GET", f"/views/users?{query}")
    assert answer.status == 400
    assert answer.json["detail"]


def test_views_that_are_not_kept_are_not_there(server: Server) -> None:
    for name in ("nothing", "gone", "millstream_ledger", "..%2fusers", "users;--"):
        assert server.ask("GET", f"/views/{name}").status == 404
    assert server.ask("POST", "/views/users", "{}").status == 405


def test_a_reader_waits_until_the_view_has_seen_a_record(server: Server, folder: Path) -> None:
    assert server.ask("GET", "/views/users?at_least=clicks/0:2&wait=0").json["batch"] == 0
    answer = server.ask("GET", "/views/users?at_least=clicks/0:3&wait=0.2")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    late = threading.Timer(0.5, commit, (folder, 1, [("cat", 1, 1.0, NOON)], 4))
    late.start()
    answer = server.ask("GET", "/views/users?at_least=clicks/0:3")
    late.join()
    assert (answer.status, answer.json["batch"]) == (200, 1)
    assert "cat" in [row["user"] for row in answer.json["rows"]]


def test_a_view_needs_its_scope(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "tokens.toml"
    config.write_text('[serve.tokens.a]\ntoken = "${env:A}"\nscopes = ["read:users"]\n')
    environ = {"A": "a" * 20, "MILLSTREAM_CONFIG": str(config)}
    with serving(folder, f"sqlite:{folder / 'log.db'}", ["shop.py", "--name", "other"], environ) as server:
        mine = {"Authorization": f"Bearer {'a' * 20}"}
        assert server.ask("GET", "/views/users").status == 401
        assert server.ask("GET", "/views/users", headers=mine).status == 200
        assert server.ask("GET", "/views/others", headers=mine).status == 403
