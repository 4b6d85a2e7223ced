"""Posting events to a server that runs, over real sockets: what is answered is in the log."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.event import Record
from millstream.log import open_log
from millstream.log.contract import TopicSettings
from tests.serve.client import Server, serving

LINES, CLOUD = {"Content-Type": "application/x-ndjson"}, "application/cloudevents+json"
PIPELINE = """
from millstream import Pipeline

shop = Pipeline("shop")
clicks = shop.stream("clicks", "user string, n int, at timestamp", time="at")
shop.view("users", clicks.group_by("user").agg(n="sum(n)"), unbounded=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve")


@pytest.fixture(scope="module")
def log(folder: Path) -> str:
    url = f"sqlite:{folder / 'log.db'}"
    with open_log(url) as log:
        for topic in ("clicks", "plain", "cloud", "keys"):
            log.create_topic(topic, 2)
        log.create_topic("latest", 1, TopicSettings(cleanup="compact"))
        log.create_topic("small", 1, TopicSettings(max_record_bytes=200))
    return url


@pytest.fixture(scope="module")
def server(folder: Path, log: str) -> Iterator[Server]:
    (folder / "shop.py").write_text(PIPELINE)
    with serving(folder, log, ["shop.py"]) as server:
        yield server


def records(url: str, topic: str) -> list[Record]:
    with open_log(url, create=False) as log:
        count = sum(bounds.end - bounds.start for bounds in log.bounds(topic).values())
        found: list[Record] = []
        with log.reader(topic) as reader:
            while len(found) < count:
                found += reader.poll(1000, timeout=1.0)
        return found


def at(url: str, topic: str, positions: list[list[int]]) -> list[Record]:
    """The records at the places of an answer."""
    there = {(record.partition, record.offset): record for record in records(url, topic)}
    return [there[partition, offset] for partition, offset in positions]


def test_a_document_is_in_the_log_where_the_answer_says(server: Server, log: str) -> None:
    answer = server.ask("POST", "/topics/plain", '{"user":  "ann"}', {"Content-Type": "application/json"})
    assert (answer.status, answer.json["topic"], answer.json["events"]) == (200, "plain", 1)
    (record,) = at(log, "plain", answer.json["positions"])
    assert (record.value, record.key) == (b'{"user":  "ann"}', None)


def test_key_and_time_come_from_fields_or_from_the_query(server: Server, log: str) -> None:
    body = '{"user": "ann", "at": "2026-01-01T00:00:00Z"}\n\n{"user": 7, "at": 1767225601}\n'
    answer = server.ask("POST", "/topics/plain?key_field=user&time_field=at", body, LINES)
    one, two = at(log, "plain", answer.json["positions"])
    assert (one.key, two.key, two.timestamp - one.timestamp) == (b"ann", b"7", 1000)
    (third,) = at(log, "plain", server.post("/topics/plain?key=bob", 1).json["positions"])
    assert third.key == b"bob"


def test_a_cloud_event_has_its_attributes_in_headers_and_its_time_in_the_record(server: Server, log: str) -> None:
    event = {
        "specversion": "1.0", "id": "a1", "source": "/shop", "type": "click", "time": "2026-01-01T00:00:00.250Z",
        "subject": "ann", "retries": 2, "data": {"n": 1},
    }  # fmt: skip
    answer = server.ask("POST", "/topics/cloud", json.dumps(event), {"Content-Type": CLOUD})
    (record,) = at(log, "cloud", answer.json["positions"])
    assert json.loads(record.value or b"") == {"n": 1}
    assert (record.key, record.timestamp) == (b"ann", 1767225600250)
    headers = dict(record.headers)
    assert headers["ce_id"] == b"a1"
    assert headers["ce_retries"] == b"2"
    assert headers["content-type"] == b"application/json"


def test_the_three_modes_of_cloud_events_say_the_same(server: Server, log: str) -> None:
    event = {
        "specversion": "1.0", "id": "ü 1", "source": "/shop", "type": "click", "partitionkey": "k",
        "datacontenttype": "application/octet-stream", "data_base64": base64.b64encode(b"\0\1").decode(),
    }  # fmt: skip
    one = server.ask("POST", "/topics/cloud", json.dumps(event), {"Content-Type": CLOUD})
    two = server.ask(
        "POST", "/topics/cloud", json.dumps([event]), {"Content-Type": "application/cloudevents-batch+json"}
    )
    binary = {"ce-specversion": "1.0", "ce-id": "%C3%BC%201", "ce-source": "/shop", "ce-type": "click"}
    three = server.ask(
        "POST", "/topics/cloud", b"\0\1", binary | {"ce-partitionkey": "k", "Content-Type": "application/octet-stream"}
    )
    positions = [each for answer in (one, two, three) for each in answer.json["positions"]]
    found = at(log, "cloud", positions)
    assert {(record.key, record.value, frozenset(record.headers)) for record in found} == {
        (b"k", b"\0\1", frozenset(found[0].headers))
    }
    assert dict(found[0].headers)["ce_id"].decode() == "ü 1"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": ""}, "id"),
        ({"specversion": "0.3"}, "specversion"),
        ({"time": "yesterday"}, "time"),
        ({"data": 1, "data_base64": "AA=="}, "data_base64"),
        ({"data_base64": "?"}, "base64"),
        ({"nested": {}}, "nested"),
        ({"Bad-Name": "x"}, "attribute"),
    ],
)
def test_a_cloud_event_that_is_none_is_told_why(server: Server, change: dict[str, object], said: str) -> None:
    event = {"specversion": "1.0", "id": "a1", "source": "/shop", "type": "click"} | change
    answer = server.ask("POST", "/topics/cloud", json.dumps(event), {"Content-Type": CLOUD})
    assert answer.status == 400
    assert said in answer.json["detail"]
    assert answer.headers["content-type"] == "application/problem+json"


def test_what_a_pipeline_could_not_read_is_refused_with_the_reason_of_the_dead_letter(server: Server, log: str) -> None:
    before = len(records(log, "clicks"))
    good = {"user": "ann", "n": 1, "at": "2026-01-01T00:00:00Z"}
    body = "\n".join(json.dumps(each) for each in (good, good | {"n": "many"}, {"user": "bob"}))
    answer = server.ask("POST", "/topics/clicks", body, LINES)
    assert answer.status == 422
    assert [(each["event"], each["reason"].split(":")[0]) for each in answer.json["events"]] == [
        (1, "not JSON with the declared columns"),
        (2, "no value in column at"),
    ]
    assert len(records(log, "clicks")) == before
    assert server.post("/topics/clicks", good).status == 200
    assert len(records(log, "clicks")) == before + 1


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/topics/nothing", "{}", {"Content-Type": "application/json"}, 404),
        ("/topics/plain", "{", {"Content-Type": "application/json"}, 400),
        ("/topics/plain", "", {"Content-Type": "application/x-ndjson"}, 400),
        ("/topics/plain", "{}", {"Content-Type": "text/html"}, 415),
        ("/topics/plain", "{}", {}, 415),
        ("/topics/latest", "{}", {"Content-Type": "application/json"}, 422),
        ("/topics/small", '"' + "x" * 200 + '"', {"Content-Type": "application/json"}, 422),
        ("/topics/plain", "{}", {"Content-Type": "application/json", "Idempotency-Key": "k" * 256}, 400),
        ("/topics/millstream.serve.http", "{}", {"Content-Type": "application/json"}, 403),
        ("/nowhere", "{}", {}, 404),
    ],
)
def test_what_cannot_be_taken_is_told_by_status(
    server: Server, path: str, body: str, headers: dict[str, str], status: int
) -> None:
    answer = server.ask("POST", path, body, headers)
    assert (answer.status, answer.json["status"]) == (status, status)
    assert answer.json["detail"]


def test_one_bad_record_among_many_harms_no_other_request(server: Server, log: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def send(n: int) -> int:
        topic, value = ("small", "x" * 300) if n % 5 == 0 else ("plain", "y")
        return server.post(f"/topics/{topic}", value).status

    before = len(records(log, "plain"))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(send, range(50)))
    assert [each == 422 for each in found] == [n % 5 == 0 for n in range(50)]
    assert len(records(log, "plain")) - before == 40


def test_a_repeat_gets_the_first_answer_and_adds_nothing(server: Server, log: str) -> None:
    first = server.post("/topics/keys", {"n": 1}, idempotency_key="one")
    again = server.post("/topics/keys", {"n": 1}, idempotency_key="one")
    assert first.text == again.text
    assert again.status == 200
    assert (first.headers.get("idempotency-replayed"), again.headers["idempotency-replayed"]) == (None, "true")
    other = server.post("/topics/keys", {"n": 2}, idempotency_key="one")
    assert other.status == 409
    assert "another body" in other.json["detail"]
    assert server.post("/topics/plain", {"n": 2}, idempotency_key="one").status == 200  # a key is one of a topic
    assert sum(record.value == b'{"n": 1}' for record in records(log, "keys")) == 1


def test_a_key_whose_request_was_refused_is_free_again(server: Server) -> None:
    assert server.post("/topics/clicks", {"n": "x"}, idempotency_key="free").status == 422
    good = {"user": "ann", "n": 1, "at": "2026-01-01T00:00:00Z"}
    assert server.post("/topics/clicks", good, idempotency_key="free").status == 200
