"""OpenSearch, or rather a stand-in for it: no server of OpenSearch is started here (see ``opensearch_server.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream import Pipeline
from millstream.errors import PlanError, SinkError, SinkUnavailable
from millstream.failpoint import armed
from millstream.relation.sink_address import search_server_of
from millstream.sink import Sink, opensearch
from millstream.sink.opensearch import OpenSearchSink
from tests.contracts.sink import KEY, JsonSinkContract, Rows, change_set, named, send
from tests.sink.opensearch_server import Index, State
from tests.sink.opensearch_server import opensearch as running

APP = "millstream.shop.out"


def open_sink(place: str, who: str = "") -> Sink:
    return OpenSearchSink(search_server_of(f"opensearch://{who}{place}/totals?tls=false"), "totals", APP, KEY)


class TestOpenSearch(JsonSinkContract):
    @pytest.fixture
    def server(self) -> Iterator[tuple[str, State]]:
        with running() as started:
            yield started

    @pytest.fixture
    def state(self, server: tuple[str, State]) -> State:
        return server[1]

    @pytest.fixture
    def again(self, server: tuple[str, State]) -> Callable[[], Sink]:
        return lambda: open_sink(server[0])

    @pytest.fixture
    def sent(self, state: State) -> Callable[[], Rows]:
        return lambda: named(list(state.indexes.get("totals", Index()).documents.values()))

    def test_one_that_is_sealed_takes_nothing_below(
        self, sink: Sink, again: Callable[[], Sink], sent: Callable[[], Rows]
    ) -> None:
        send(sink, 5, {"ann": (1, 1.0)})
        assert not sink.seal(1 << 32, after=5)  # a request that is on its way could not be kept out

    def test_a_batch_that_came_in_part_comes_again_and_an_older_one_changes_nothing(
        self,
        sink: Sink,
        again: Callable[[], Sink],
        state: State,
        sent: Callable[[], Rows],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(opensearch, "ROWS", 2)
        rows: Rows = {f"user {n}": (n, 0.5) for n in range(5)}
        send(sink, 1, rows)
        assert state.bulks == 3
        new: Rows = {name: (n + 10, 0.5) for name, (n, _) in rows.items()}
        with armed("sink.opensearch.part"), pytest.raises(RuntimeError):
            send(sink, 2, new)
        assert sorted(n for n, _ in sent().values()) == [2, 3, 4, 10, 11]
        assert sink.last() == 1
        with again() as other:
            send(other, 2, new)
        assert (sent(), sink.last()) == (new, 2)

    def test_an_answer_that_is_lost_and_documents_that_are_too_many_are_sent_again(
        self, sink: Sink, state: State, sent: Callable[[], Rows]
    ) -> None:
        send(sink, 1, {"ann": (1, 1.0), "bob": (1, 1.0)})
        for fault in ("busy", "busy_items", "silent"):
            number = (sink.last() or 0) + 1
            setattr(state, fault, 1)
            rows: Rows = {"ann": (number, 1.0), fault: (number, 2.0)}
            with pytest.raises(SinkUnavailable, match="OpenSearch at http"):
                send(sink, number, rows, gone=("bob",))
            send(sink, number, rows, gone=("bob",))
            assert sink.last() == number
            assert sent()["ann"] == (number, 1.0)
        assert set(sent()) == {"ann", "busy", "busy_items", "silent"}

    def test_versions_keep_an_older_batch_out_of_documents_that_a_newer_one_changed(
        self, sink: Sink, again: Callable[[], Sink], state: State, sent: Callable[[], Rows]
    ) -> None:
        send(sink, 1, {"ann": (1, 1.0), "bob": (1, 1.0)})
        payload, _ = sink.pack(change_set({"ann": (2, 2.0), "bob": (2, 2.0)}))
        with again() as newer:
            send(newer, 1 << 32, {"ann": (9, 9.0)}, gone=("bob",))
        assert isinstance(sink, OpenSearchSink)
        sink._bulk(payload, 2)  # as if it had looked for the number just before
        assert sent() == {"ann": (9, 9.0)}
        assert sink.last() == 1 << 32

    def test_a_row_that_the_mapping_does_not_take_is_refused_and_its_neighbours_are_not(
        self, sink: Sink, state: State, sent: Callable[[], Rows]
    ) -> None:
        state.indexes["totals"] = Index(types={"name": "text", "n": "long", "total": "date"})
        payload, _ = sink.pack(change_set({"ann": (1, None), "bob": (2, 2.0)}))
        (refused,) = sink.send(payload, 1, marked=False)
        assert "bob" in refused.row
        assert "failed to parse field [total] of type [date]" in refused.why
        assert (sent(), sink.last()) == ({"ann": (1, None)}, 1)

    def test_a_strict_mapping_without_a_column_of_the_view_is_refused_before_anything_is_sent(
        self, sink: Sink, state: State
    ) -> None:
        state.indexes["totals"] = Index(types={"name": "text"}, dynamic="strict")
        with pytest.raises(SinkError, match="its mapping is strict and has no n, total, columns of view totals"):
            send(sink, 1, {"ann": (1, 1.0)})
        assert state.bulks == 0

    def test_an_id_that_is_too_long_is_refused(self, sink: Sink, sent: Callable[[], Rows]) -> None:
        payload, refused = sink.pack(change_set({"a" * 600: (1, 1.0), "bob": (1, 1.0)}, gone=("b" * 600,)))
        assert [each.why for each in refused] == ["the id of a document has at most 512 bytes"]
        assert len(payload) == 1

    def test_it_begins_anew_only_where_nothing_is(self, sink: Sink, state: State) -> None:
        assert sink.anew()
        send(sink, 1, {"ann": (1, 1.0)})
        assert not sink.anew()


def test_who_one_is_is_looked_up_when_it_is_needed_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_PASSWORD", "p@ss/w?rd:#1")
    with running() as (place, state):
        state.who = "me:p@ss/w?rd:#1"
        with open_sink(place, "me:${env:SEARCH_PASSWORD}@") as sink:
            send(sink, 1, {"ann": (1, 1.0)})
            assert sink.last() == 1
        with open_sink(place) as sink, pytest.raises(SinkError, match="401 Unauthorized") as refused:
            sink.last()
        assert "USER:${env:PASSWORD}" in refused.value.hint


def test_a_server_that_is_away_is_unavailable_and_found_when_it_is_back() -> None:
    with running() as (place, _):
        sink = open_sink(place)
        send(sink, 1, {"ann": (1, 1.0)})
    with pytest.raises(SinkUnavailable, match="OpenSearch at"):
        sink.last()
    sink.close()


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("opensearch://h:9200", "cannot be read"),
        ("opensearch://h:9200/", "cannot be read"),
        ("opensearch://h:9200/Upper", "lower-case"),
        ("opensearch://h:9200/i?tls=no", "expected true or false"),
        ("opensearch://h:9200/i?pipeline=x", "found pipeline=, expected tls="),
        ("opensearch://me:secret@h:9200/i", "found a secret in the address"),
    ],
)
def test_an_address_is_read_and_shows_no_secret(to: str, message: str) -> None:
    pipeline = Pipeline("p")
    stream = pipeline.stream("s", "name string")
    view = pipeline.view("v", stream.group_by("name").agg(n="count(*)"))
    with pytest.raises(PlanError, match=rf"test_opensearch\.py:\d+: sink out: .*{message}") as refused:
        pipeline.sink("out", view, to)
    assert "secret@" not in str(refused.value)
    assert pipeline.sink("out", view, "opensearch://me:${env:WORD}@[::1]:1/i-1").mode == "at_least_once"
    with pytest.raises(PlanError, match="expected mode to be at_least_once or at_most_once; found 'exactly_once'"):
        pipeline.sink("more", view, "opensearch://h:1/i", mode="exactly_once")
    with pytest.raises(PlanError, match="has no key, so its rows cannot be documents"):
        pipeline.sink("more", pipeline.view("w", stream.select("name")), "opensearch://h:1/i")


def test_an_address_without_a_port_has_the_usual_one_and_tls() -> None:
    server: Any = search_server_of("opensearch://search.example/posts")
    assert (server.url, server.name, server.who()) == ("https://search.example:9200", "posts", "")
