"""A text index keeps the contract, and what only it promises."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from millstream import Pipeline
from millstream.cli import execute
from millstream.errors import ConfigError, PlanError, SinkError, SinkForgot
from millstream.sink import ChangeSet, Sink
from millstream.sink.search import SearchSink
from millstream.sink.search_file import IndexFile, search
from tests.contracts.sink import KEY, JsonSinkContract, Rows, named, send


def open_sink(path: Path, view: str = "totals", columns: tuple[str, ...] = ("name",), how: str = "unicode61") -> Sink:
    return SearchSink(path, columns, how, view, "millstream.shop.out", KEY)


def documents(path: Path) -> list[dict[str, object]]:
    file = IndexFile(path, create=False)
    try:
        with file.read() as db:
            return [json.loads(text) for (text,) in db.execute("SELECT document FROM millstream_rows ORDER BY id")]
    finally:
        file.close()


class TestSearch(JsonSinkContract):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "totals.search.db"

    @pytest.fixture
    def again(self, path: Path) -> Callable[[], Sink]:
        return lambda: open_sink(path)

    @pytest.fixture
    def sent(self, path: Path) -> Callable[[], Rows]:
        return lambda: named(documents(path))

    def test_a_file_that_is_older_than_what_was_acknowledged_is_noticed_and_filled_anew(
        self, sink: Sink, sent: Callable[[], Rows]
    ) -> None:
        send(sink, 1, {"ann": (1, 1.0)})
        payload, _ = sink.pack(ChangeSet(*pair({"bob": 2})))
        with pytest.raises(SinkForgot, match="expected batch number 7, found 1"):
            sink.send(payload, 8, marked=True, after=7)
        assert sent() == {"ann": (1, 1.0)}
        assert sink.anew()
        sink.send(payload, 8, marked=True)
        assert (sent(), sink.last()) == ({"bob": (2, 0.5)}, 8)

    @pytest.mark.parametrize(("at", "there"), [("search.before_commit", False), ("search.after_commit", True)])
    def test_a_process_that_is_killed_leaves_all_of_a_batch_or_nothing(
        self, sink: Sink, path: Path, sent: Callable[[], Rows], at: str, there: bool
    ) -> None:
        send(sink, 1, {"ann": (1, 1.0), "bob": (2, 2.0)})
        code = (
            "from tests.sink.test_search import *\n"
            f"with open_sink(Path({str(path)!r})) as sink:\n    send(sink, 2, {{'eve': (3, 3.0)}}, gone=('ann',))\n"
        )
        killed = {**os.environ, "MILLSTREAM_FAILPOINT": f"{at}:kill"}
        assert subprocess.run([sys.executable, "-c", code], env=killed, timeout=120).returncode == -signal.SIGKILL
        assert sink.last() == (2 if there else 1)
        assert [len(search(path, name)) for name in ("ann", "eve")] == ([0, 1] if there else [1, 0])
        send(sink, 2, {"eve": (3, 3.0)}, gone=("ann",))
        assert sent() == {"bob": (2, 2.0), "eve": (3, 3.0)}
        assert [len(search(path, name)) for name in ("ann", "bob", "eve")] == [0, 1, 1]


def pair(rows: dict[str, int]) -> tuple[pl.DataFrame, pl.DataFrame]:
    schema = {"name": pl.String, "n": pl.Int64, "total": pl.Float64}
    frame = pl.DataFrame([(name, n, 0.5) for name, n in rows.items()], schema=schema, orient="row")
    return frame, frame.clear().select("name")


POSTS = pl.DataFrame(
    {
        "name": ["a", "b", "c", "d"],
        "title": ["The old mill", "Streams and mills", "Zürich café", None],
        "body": [
            "A mill grinds grain. A mill turns.",
            "water runs to the mill",
            'he said "water" (loudly) -- AND left',
            "x",
        ],
        "tags": [["corn", None], ["river"], [], None],
    }
)


def posts(path: Path, how: str = "unicode61") -> Sink:
    sink = open_sink(path, "posts", ("title", "body", "tags"), how)
    sink.send(sink.pack(ChangeSet(POSTS, POSTS.clear().select("name"))).payload, 1, marked=True)
    return sink


def found(path: Path, *words: str, **options: bool) -> list[str]:
    return [hit.row["name"] for hit in search(path, words, **options)]


def test_rows_are_found_by_all_words_by_one_of_them_by_beginnings_and_by_phrases(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with posts(path):
        assert found(path, "mill") == ["a", "b"]  # the more often, the better
        assert found(path, "mill", "water") == ["b"]
        assert set(found(path, "grain", "river", either=True)) == {"a", "b"}
        assert found(path, "mill*") == found(path, "MILL*")
        assert set(found(path, "mill*")) == {"a", "b"}
        assert found(path, "runs to") == ["b"]
        assert found(path, "to runs") == []
        assert found(path, "zurich") == found(path, "CAFE") == ["c"]
        assert found(path, "corn") == ["a"]
        assert found(path, '"water"', "(loudly)") == ["c"]
        assert set(found(path, "AND")) == {"b", "c"}
        assert found(path, "title:mill") == []
        assert [hit.snippet for hit in search(path, "grinds")] == ["A mill [grinds] grain. A mill turns."]
        assert len(search(path, "mill", limit=1)) == 1
        assert search(path, "mill")[0].rank >= search(path, "mill")[1].rank


def test_words_change_with_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with posts(path) as sink:
        changed = POSTS[:1].with_columns(title=pl.lit("The new bakery"), body=pl.lit("bread"))
        sink.send(sink.pack(ChangeSet(changed, POSTS[1:2].select("name"))).payload, 2, marked=True)
        assert found(path, "mill") == []
        assert found(path, "bread") == ["a"]
        file = IndexFile(path, create=False)
        with file.write() as db:
            db.execute("INSERT INTO millstream_words (millstream_words) VALUES ('integrity-check')")
        file.close()


@pytest.mark.parametrize(("how", "word", "names"), [("porter", "grinding", ["a"]), ("trigram", "oud", ["c"])])
def test_text_is_cut_into_words_as_the_address_says(tmp_path: Path, how: str, word: str, names: list[str]) -> None:
    with posts(tmp_path / "x.db", how):
        assert found(tmp_path / "x.db", word) == names


def test_whoever_searches_does_not_wait_for_a_batch_and_sees_none_of_it_before_its_end(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    posts(path).close()
    file = IndexFile(path, create=False)
    with file.write() as db:
        db.execute("DELETE FROM millstream_words WHERE rowid = 1; DELETE FROM millstream_rows WHERE id = 1")
        assert found(path, "grain") == ["a"]
    assert found(path, "grain") == []
    file.close()


def test_a_file_of_another_view_of_other_columns_or_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    open_sink(path).close()
    with pytest.raises(ConfigError, match="whose view is totals, expected others"):
        open_sink(path, "others")
    with pytest.raises(ConfigError, match="whose columns is name, expected name, title"):
        open_sink(path, columns=("name", "title"))
    with pytest.raises(ConfigError, match="whose tokenizer is unicode61, expected porter"):
        open_sink(path, how="porter")
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(ConfigError, match="SQLite database of something else"):
        open_sink(other)
    with pytest.raises(SinkError, match="no text index at"):
        search(tmp_path / "none.db", "x")
    with pytest.raises(ConfigError, match="expected a word"):
        search(path, [" ", '""', "*"])
    with pytest.raises(ConfigError, match="limit=0"):
        search(path, "x", limit=0)


def test_columns_that_are_searched_hold_text(tmp_path: Path) -> None:
    with (
        open_sink(tmp_path / "x.db", columns=("n",)) as sink,
        pytest.raises(ConfigError, match="columns=n is of Int64"),
    ):
        sink.pack(ChangeSet(*pair({"ann": 1})))


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("search:x.db", "found no columns="),
        ("search:x.db?columns=", "found no columns="),
        ("search:x.db?columns=title", "columns=title: view v has the columns name, m"),
        ("search:x.db?columns=name,Name", "names a column twice"),
        ("search:x.db?columns=name&tokenizer=snow", "expected unicode61, porter, trigram"),
        ("search:x.db?columns=name&fields=m", "found fields=, expected columns= or tokenizer="),
        ("search:?columns=name", "expected topic:NAME"),
    ],
)
def test_an_address_says_which_columns_of_the_view_are_searched(to: str, message: str) -> None:
    pipeline = Pipeline("p")
    stream = pipeline.stream("s", "name string")
    view = pipeline.view("v", stream.group_by("name").agg(m="max(name)"))
    with pytest.raises(PlanError, match=r"test_search\.py:\d+: sink out: .*" + message.replace("?", r"\?")):
        pipeline.sink("out", view, to)
    assert pipeline.sink("out", view, "search:x.db?columns=name,m").mode == "exactly_once"
    with pytest.raises(PlanError, match="has no key, so its rows cannot be a text index"):
        pipeline.sink("more", pipeline.view("w", stream.select("name")), "search:y.db?columns=name")


def test_the_command_shows_the_best_first_with_the_words_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.db"
    posts(path).close()
    assert execute(["search", str(path), "mill", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [line["row"]["name"] for line in lines] == ["a", "b"]
    assert "[mill]" in lines[0]["snippet"]
    assert execute(["search", str(path), "grain", "river", "--any", "--max", "1"]) == 0
    assert "[river]" in capsys.readouterr().out
    assert execute(["search", str(path), "nowhere"]) == 0
    assert "nothing found" in capsys.readouterr().err
    assert execute(["search", str(tmp_path / "none.db"), "x"]) == 1
