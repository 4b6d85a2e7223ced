"""``make steady MINUTES=60 RATE=20000``: a steady stream through Kafka, PostgreSQL and Kafka again, with a fault every two minutes.

A producer sends as many events a second into a topic. A pipeline keeps sums in PostgreSQL and sends their changes to a second topic.
Every two minutes its driver, its JVM, a worker, the broker or PostgreSQL is killed. Before each fault a line says how far it is behind, and how much
memory and disk it takes. At the end views and topic are compared with a recomputation from the first topic: nothing lost, nothing twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import confluent_kafka as ck
import polars as pl
import psycopg

from millstream.log import open_log
from millstream.store import open_reader
from millstream.testing import KafkaBroker, PostgresServer
from tests.runtime.shop_file import ROOT, living, load
from tests.soak.processes import one_of
from tests.soak.runner import Runner, Wrong, wait

FILE = """
from millstream import Pipeline
from millstream.window import tumbling

steady = Pipeline("steady", log={log!r}, to={to!r}, checkpoint={check!r})
events = steady.stream("events", "user long, kind string, amount long, ms long", time="timestamp_millis(ms) AS at", delay="1 minute")
steady.view("per_user", events.group_by("user").agg(n="count(*)", total="sum(amount)"))
steady.view("per_window", events.group_by("kind", tumbling("at", "10 seconds")).agg(n="count(*)", total="sum(amount)"))
steady.sink("out", steady.views["per_user"], "topic:totals")
"""
USERS, KINDS = 10_000, "abcdefgh"
WARM = 2
"""Faults after which memory and disk must not grow any more."""
PATIENT = timedelta(minutes=5)
"""How long a server may take to start on a busy machine."""
GROWTH = 1.5
"""By how much they may differ between the first and the second half."""


@dataclass(frozen=True)
class Sample:
    """What a moment is like."""

    lag: int
    memory: int
    checkpoint: int
    database: int


def main() -> int:
    """Keep it up; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="make steady", description="A steady stream under faults.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=20_000, help="events a second [20000]")
    parser.add_argument("--every", type=float, default=120, help="seconds between faults [120]")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--produce", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.produce:
        return produce(asked.produce, asked.rate, asked.seed)
    print(f"seed {asked.seed}: {asked.rate:,} events/s for {asked.minutes:g} minutes, a fault every {asked.every:g} s")
    try:
        with Steady(asked.seed, asked.rate) as steady:
            steady.keep_up(asked.minutes * 60, asked.every)
            steady.check()
    except Wrong as error:
        print(f"WRONG: {error}")
        return 1
    return 0


def produce(bootstrap: str, rate: int, seed: int) -> int:
    """Send events until SIGTERM; what a broker that is away does not take is sent again. Print how many were acknowledged."""
    chance, stopped, acknowledged = random.Random(seed), list[int](), [0]
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            raise Wrong(f"an event was not taken: {error}")
        acknowledged[0] += 1

    settings = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "linger.ms": 20,
        "compression.type": "lz4",
        "log_level": 0,
    }
    client = ck.Producer({**settings, "message.timeout.ms": 600_000, "queue.buffering.max.messages": 10_000_000})
    began, sent = time.time(), 0
    while not stopped:
        for _ in range(int((time.time() - began) * rate) - sent):
            user, at = chance.randrange(USERS), time.time_ns() // 1_000_000
            text = f'{{"user":{user},"kind":"{KINDS[user % 8]}","amount":{user % 97},"ms":{at}}}'
            client.produce("events", text.encode(), b"%d" % user, on_delivery=delivered)
            sent += 1
        client.poll(0.02)
    client.flush(300)
    print(json.dumps({"sent": sent, "acknowledged": acknowledged[0]}), flush=True)
    return 0


class Steady:
    """The servers, the producer and the pipeline."""

    def __init__(self, seed: int, rate: int) -> None:
        self.chance, self.seed, self.rate = random.Random(seed), seed, rate
        self.folder = Path(tempfile.mkdtemp(prefix="millstream-steady-"))
        self.broker, self.postgres = KafkaBroker(ordinary=True, patience=PATIENT), PostgresServer(patience=PATIENT)
        self.samples: list[Sample] = []
        self._stack = ExitStack()
        self.runner: Runner | None = None

    def __enter__(self) -> Steady:
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._stack.enter_context(self.broker)
        self._stack.enter_context(self.postgres)
        with open_log(self.broker.url, create=True) as log:
            log.create_topic("events", 2)
            log.create_topic("totals", 2)
        self.file, self.check_folder = self.folder / "steady.py", self.folder / "check"
        text = FILE.format(log=self.broker.url, to=self.postgres.address, check=str(self.check_folder))
        self.file.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "tests.soak.steady", "--rate", str(self.rate), "--seed", str(self.seed)]
        self.producer = subprocess.Popen(
            [*command, "--produce", self.broker.bootstrap], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.runner is not None:
            self.runner.end()
        if self.producer.poll() is None:
            self.producer.kill()
        self.producer.communicate()
        self._stack.close()

    def keep_up(self, seconds: float, every: float) -> None:
        """Let faults happen, so often and so long; no fault may stop anything for good."""
        until = time.monotonic() + seconds
        faults = [
            self.kill_the_driver,
            self.kill_the_jvm,
            self.kill_a_worker,
            self.kill_the_broker,
            self.kill_the_database,
        ]
        self.start()
        print(
            f"{'AFTER':>8} {'LAG':>10} {'MEMORY MB':>10} {'CHECKPOINT MB':>14} {'DATABASE MB':>12}  FAULT", flush=True
        )
        began = time.monotonic()
        for fault in self._shuffled(faults):
            self._wait(min(every, until - time.monotonic()))
            sample = self.sample()
            self.samples.append(sample)
            over = time.monotonic() >= until - 1
            name = "" if over else fault.__name__.replace("_", " ")
            sizes = f"{sample.memory >> 20:>10,} {sample.checkpoint >> 20:>14,} {sample.database >> 20:>12,}"
            print(f"{time.monotonic() - began:>7.0f}s {sample.lag:>10,} {sizes}  {name}", flush=True)
            if over:
                return
            fault()

    def _shuffled(self, faults: Sequence[Callable[[], None]]) -> Iterator[Callable[[], None]]:
        while True:
            yield from self.chance.sample(faults, len(faults))

    def _wait(self, seconds: float) -> None:
        """Let it run; a run that ends by itself is an error."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.runner is None or self.runner.code is not None:
                raise Wrong(f"the run ended: {self.runner and self.runner.said}")
            time.sleep(0.5)

    def start(self, *options: str) -> Runner:
        """Run the pipeline, and wait for its first batch."""
        self.runner = runner = Runner("run", self.file, "--json", *options)
        wait(lambda: runner.batches() > 0 or runner.code is not None, "the first batch")
        return runner

    def running(self) -> Runner:
        """The process that runs the pipeline."""
        if self.runner is None or self.runner.code is not None:
            raise Wrong(f"the run ended: {self.runner and self.runner.said}")
        return self.runner

    def kill_the_driver(self) -> None:
        """SIGKILL, and a new run."""
        runner = self.running()
        runner.kill()
        runner.ended()
        self.start()

    def kill_the_jvm(self) -> None:
        """SIGKILL of Spark's JVM: the run ends and says so; a new run goes on."""
        runner = self.running()
        os.kill(self._process("java"), signal.SIGKILL)
        runner.failed("Spark's JVM ended by SIGKILL")
        self.start()

    def kill_a_worker(self) -> None:
        """SIGKILL of a Python process of Spark's: the run goes on, or ends and says so."""
        runner = self.running()
        os.kill(self._process("python"), signal.SIGKILL)
        before = runner.batches()
        wait(lambda: runner.batches() > before + 1 or runner.code is not None, "a batch after the kill")
        if runner.code is not None:
            runner.failed("a Python process of Spark's was killed")
            self.start()

    def kill_the_broker(self) -> None:
        """SIGKILL, some seconds without a broker, and the same run goes on."""
        self._away(self.broker)

    def kill_the_database(self) -> None:
        """SIGKILL, some seconds without PostgreSQL, and the same run goes on."""
        self._away(self.postgres)

    def _away(self, server: KafkaBroker | PostgresServer) -> None:
        runner = self.running()
        server.kill()
        time.sleep(self.chance.random() * 10)
        server.start()
        before = runner.batches()
        wait(lambda: runner.batches() > before or runner.code is not None, f"a batch after the {server.name} is back")

    def _process(self, program: str) -> int:
        found = one_of(self.running().pid, program, besides=self.running().pid, nth=self.chance.random())
        if found is None:
            raise Wrong(f"the run has no {program}")
        return found

    def sample(self) -> Sample:
        """How far behind it is, and what it takes."""
        runner = self.running()
        lags = [json.loads(line)["lag"] for line in runner.lines[-5:] if line.startswith("{")]
        with psycopg.connect(self.postgres.address) as db:
            (database,) = db.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
        return Sample(
            lag=lags[-1] or 0,
            memory=sum(map(_memory, living(runner.pid))),
            checkpoint=sum(_size(file) for file in self.check_folder.rglob("*")),
            database=int(database),
        )

    def check(self) -> None:
        """Stop the producer, finish what is left, and compare with a recomputation."""
        self.producer.send_signal(signal.SIGTERM)
        counts = json.loads(self.producer.communicate(timeout=600)[0])
        if self.runner is not None:
            self.runner.signal(signal.SIGTERM)
            self.runner.ended()
        if (last := Runner("run", self.file, "--once", "--json")).ended() != 0:
            raise Wrong(f"the last run ended with an error: {last.said}")
        self._equal(counts)
        self._flat()

    def _equal(self, counts: dict[str, int]) -> None:
        records = 0
        sums: dict[str, pl.DataFrame] = {}
        for events in _records(self.broker, "events"):
            records += len(events)
            window = events.with_columns(window=pl.col("ms") // 10_000)
            for name, keys in {"per_user": ["user"], "per_window": ["kind", "window"]}.items():
                part = window.group_by(keys).agg(n=pl.len().cast(pl.Int64), total=pl.sum("amount"))
                both = pl.concat([sums[name], part]) if name in sums else part
                sums[name] = both.group_by(keys).agg(pl.sum("n"), pl.sum("total"))
        if not records == counts["sent"] == counts["acknowledged"]:
            raise Wrong(f"{counts} events, and {records:,} in the topic")
        pipeline = load(self.file)
        with open_reader(pipeline.to) as store:
            judged = store.admission("steady").to_pylist()
        if (admitted := sum(row["admitted"] for row in judged)) != records:
            raise Wrong(f"{admitted:,} records of {records:,} are admitted: {judged}")
        users = pipeline.views["per_user"].to_polars().select("user", "n", "total")
        windows = pipeline.views["per_window"].to_polars()
        windows = windows.with_columns(window=pl.col("window_start").dt.epoch("ms") // 10_000)
        for name, found in {"per_user": users, "per_window": windows.select("kind", "window", "n", "total")}.items():
            if not found.sort(found.columns).equals(sums[name].select(found.columns).sort(found.columns)):
                raise Wrong(f"view {name} is not the recomputation: {found.height} rows, {sums[name].height} expected")
        changes = pl.concat(list(_records(self.broker, "totals")))
        if not changes.select((pl.col("n").diff() > 0).over("user").fill_null(True).all()).item():
            raise Wrong("a change came twice into the second topic, or an older one behind a newer one")
        sent = changes.group_by("user", maintain_order=True).last().select("user", "n", "total")
        if not sent.sort("user").equals(users.sort("user")):
            raise Wrong("the second topic is not the view")
        print(
            f"equal: {records:,} events, {users.height:,} users, {windows.height:,} windows, {changes.height:,} changes"
        )

    def _flat(self) -> None:
        """Memory and disk must be as much at the end as they were once it was warm."""
        samples = self.samples[WARM:]
        if len(samples) < 4:
            print("flat: too short to say")
            return
        half, grown = len(samples) // 2, list[str]()
        for name in ("memory", "checkpoint", "database"):
            first, second = (median(getattr(each, name) for each in part) for part in (samples[:half], samples[half:]))
            print(f"{name}: {first / 1e6:,.0f} MB in the first half, {second / 1e6:,.0f} MB in the second (medians)")
            if second > first * GROWTH:
                grown.append(name)
        if grown:
            raise Wrong(f"what grows: {', '.join(grown)}")


def _records(broker: KafkaBroker, topic: str) -> Iterator[pl.DataFrame]:
    """All committed records of a topic as columns, a partition after the other, in order of offsets."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "check", "isolation.level": "read_committed"}
    consumer = ck.Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
    for partition in range(2):
        consumer.assign([ck.TopicPartition(topic, partition, 0)])
        over, waiting, heard = False, list[bytes](), time.monotonic()
        while not over:
            messages = consumer.consume(50_000, 1)  # it waits as long for what would make it so many
            if messages:
                heard = time.monotonic()
            elif time.monotonic() > heard + 60:
                raise Wrong(f"nothing comes from topic {topic}")
            over = any(each.error() is not None for each in messages)
            waiting += [each.value() or b"" for each in messages if each.error() is None]
            if waiting and (over or len(waiting) > 500_000):
                yield pl.read_ndjson(b"\n".join(waiting))
                waiting = []
    consumer.close()


def _memory(pid: int) -> int:
    """What a process has for itself, and its part of what it shares."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
