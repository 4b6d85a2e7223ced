"""What a server tells of itself, of the log and of pipelines: read from the ledgers, so that no restart sets it back."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from starlette.requests import Request

from millstream.event import Event, TopicPartition
from millstream.load import load_pipeline
from millstream.log import open_log
from millstream.serve.access import Access
from millstream.serve.committer import Committer
from millstream.serve.health import Health
from millstream.serve.journal import Journal
from millstream.serve.metrics import Metrics
from millstream.serve.refusal import Refusal
from millstream.serve_settings import ServeSettings
from millstream.store import Batch, Target, open_writer
from millstream.store.contract import COUNTS
from tests.serve.client import Server, serving
from tests.waiting import until

PIPELINE = """
from millstream import Pipeline

shop = Pipeline("shop", log="sqlite:log.db", to="sqlite:views.db")
clicks = shop.stream("clicks", "user string, n int")
shop.view("users", clicks.group_by("user").agg(n="sum(n)"), unbounded=True)
"""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(PIPELINE)
    url = f"sqlite:{tmp_path / 'log.db'}"
    with open_log(url) as log:
        log.create_topic("clicks", 2)
        log.append("clicks", [Event(b'{"n": 1}', b"%d" % n) for n in range(10)])
        log.commit_group('say "hi"', {TopicPartition("clicks", 0): 1})
    return url


def commit(folder: Path, batch: int, admitted: int) -> None:
    """A batch as a run commits it."""
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    pipeline = load_pipeline(folder / "shop.py")
    counted = dict.fromkeys(COUNTS.names, 0) | {"topic": "clicks", "admitted": admitted, "late": 1, "watermark": NOON}
    with open_writer(f"sqlite:{folder / 'views.db'}") as writer:
        fence = writer.claim("shop", takeover=True)
        writer.prepare("shop", pipeline.fingerprint(), [Target("users", schema, ("user",))])
        counts = pa.Table.from_pylist([counted], COUNTS)
        state = {"held": {"1:0": [2, 100, 1], "1:1": [3, 200, 1]}}
        writer.commit(Batch("c1", batch, fence, {"clicks": {0: 2, 1: 0}}, counts=counts, state=state))


def metrics(server: Server) -> dict[str, float]:
    answer = server.ask("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    *lines, end = answer.text.splitlines()
    assert end == "# EOF"
    names = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert len(names) == len(set(names))
    found = {}
    for line in lines:
        if not line.startswith("#"):
            assert re.fullmatch(r'[a-z_]+(\{([a-z]+="(?:[^"\\\n]|\\.)*",?)+\})? [0-9.e+-]+', line), line
            sample, _, value = line.rpartition(" ")
            assert sample not in found
            found[sample] = float(value)
    return found


def test_the_log_its_groups_and_pipelines_are_told(tmp_path: Path, log: str) -> None:
    commit(tmp_path, 0, 5)
    with serving(tmp_path, log, ["shop.py"]) as server:
        found = metrics(server)
        ends = [found[f'millstream_topic_end_offset{{topic="clicks",partition="{p}"}}'] for p in (0, 1)]
        assert sum(ends) == 10
        assert found['millstream_group_lag_records{group="say \\"hi\\"",topic="clicks",partition="0"}'] == ends[0] - 1
        mine = 'pipeline="shop",topic="clicks",partition="0"'
        assert found[f"millstream_pipeline_lag_records{{{mine}}}"] == ends[0] - 2
        assert found[f'millstream_pipeline_records_total{{{mine},verdict="admitted"}}'] == 5
        assert found[f'millstream_pipeline_records_total{{{mine},verdict="late"}}'] == 1
        assert found[f"millstream_pipeline_watermark_timestamp_seconds{{{mine}}}"] == NOON.timestamp()
        assert found['millstream_pipeline_batch{pipeline="shop"}'] == 0
        assert found['millstream_pipeline_state_rows{pipeline="shop",kernel="1"}'] == 5
        assert found['millstream_pipeline_state_bytes{pipeline="shop",kernel="1"}'] == 300
        assert found["millstream_serve_events_total"] == 0
        server.ask("POST", "/topics/clicks", '{"n": 1}\n{"n": 2}', {"Content-Type": "application/jsonl"})
        assert until(lambda: metrics(server)["millstream_serve_events_total"]) == 2


def test_what_ledgers_count_goes_on_over_a_restart(tmp_path: Path, log: str) -> None:
    name = 'millstream_pipeline_records_total{pipeline="shop",topic="clicks",partition="0",verdict="admitted"}'
    commit(tmp_path, 0, 5)
    with serving(tmp_path, log, ["shop.py"]) as server:
        assert metrics(server)[name] == 5
        server.kill()
    commit(tmp_path, 1, 7)
    with serving(tmp_path, log, ["shop.py"]) as server:
        assert metrics(server)[name] == 12


def test_a_pipeline_that_never_ran_is_told_as_down(tmp_path: Path, log: str) -> None:
    with serving(tmp_path, log, ["shop.py"]) as server:
        found = metrics(server)
    assert found['millstream_pipeline_up{pipeline="shop"}'] == 0
    assert not [name for name in found if name.startswith("millstream_pipeline_batch")]


def test_a_server_that_lives_and_one_that_is_ready(tmp_path: Path, log: str) -> None:
    with serving(tmp_path, log) as server:
        for path, said in (("/healthz", "alive\n"), ("/readyz", "ready\n")):
            answer = server.ask("GET", path, headers={"Host": "10.1.2.3:8080"})
            assert (answer.status, answer.text) == (200, said)
        assert server.ask("GET", "/metrics", headers={"Host": "10.1.2.3:8080"}).status == 421


def test_a_server_whose_log_does_not_answer_is_not_ready(log: str) -> None:
    async def ask(health: Health) -> int:
        return (await health.ready(Request({"type": "http"}))).status_code

    with open_log(log) as opened:
        committer = Committer(opened, Journal(opened, "x"), lambda topic, events: {}, keys=1, stopped=lambda: None)
        health = Health(opened, committer, Metrics(opened, [], committer), Access(ServeSettings(), []))
        assert asyncio.run(ask(health)) == 200
        committer.away = True
        with pytest.raises(Refusal, match="away"):
            asyncio.run(ask(health))
        committer.away = False
        committer.close()
    with pytest.raises(Refusal) as refused:
        asyncio.run(ask(health))
    assert refused.value.status == 503


def test_metrics_need_their_scope(tmp_path: Path, log: str) -> None:
    (tmp_path / "millstream.toml").write_text(
        '[serve.tokens.a]\ntoken = "${env:A}"\nscopes = ["read:*", "write:*"]\n'
        '[serve.tokens.b]\ntoken = "${env:B}"\nscopes = ["metrics"]\n'
    )
    tokens = {"A": "a" * 20, "B": "b" * 20}
    with serving(tmp_path, log, environ=tokens) as server:
        found = [
            server.ask("GET", "/metrics", headers={"Authorization": f"Bearer {token}"} if token else {}).status
            for token in ("", *tokens.values())
        ]
        assert found == [401, 403, 200]
        assert server.ask("GET", "/readyz").status == 200
        headers = {"Authorization": f"Bearer {tokens['B']}"}
        assert server.ask("GET", "/topics/clicks/events", headers=headers).status == 403
