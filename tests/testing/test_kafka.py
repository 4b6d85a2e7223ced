"""The broker for tests is a real one: it starts, keeps its data over restarts and crashes, and never outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from millstream.errors import MachineError
from millstream.testing import KafkaBroker, PostgresServer
from tests.waiting import until

kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    try:
        started = KafkaBroker()
    except MachineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no Kafka here: {error.message}")
    with started:
        yield started


def write(broker: KafkaBroker, topic: str, *values: bytes) -> None:
    producer = kafka.Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def read(broker: KafkaBroker, topic: str, count: int) -> list[bytes]:
    consumer = kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "log_level": 0})
    consumer.assign([kafka.TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


def make_topic(broker: KafkaBroker, name: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for future in client.create_topics([admin.NewTopic(name, 1, 1)]).values():
        future.result()


def test_the_address_of_a_broker_is_on_loopback(broker: KafkaBroker) -> None:
    assert broker.bootstrap.startswith("127.0.0.1:")
    assert broker.url == f"kafka://{broker.bootstrap}"


def test_records_survive_a_restart_and_a_crash(broker: KafkaBroker) -> None:
    make_topic(broker, "facts")
    address = broker.bootstrap
    write(broker, "facts", b"one")
    broker.restart()
    write(broker, "facts", b"two")
    broker.kill()
    broker.start()
    assert broker.bootstrap == address
    assert read(broker, "facts", 2) == [b"one", b"two"]


def test_a_topic_is_not_made_by_writing_to_it(broker: KafkaBroker) -> None:
    consumer = kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "x", "log_level": 0})
    try:
        assert consumer.list_topics("nowhere", timeout=30).topics["nowhere"].error is not None
    finally:
        consumer.close()


def test_a_broker_that_cannot_start_shows_its_log(broker: KafkaBroker) -> None:
    with (
        pytest.raises(MachineError, match=r"log\.retention\.check"),
        KafkaBroker(settings={"log.retention.check.interval.ms": "never"}),
    ):
        pass


def test_an_ordinary_broker_has_the_jvm_and_the_settings_of_kafka_itself() -> None:
    with KafkaBroker(ordinary=True) as broker:
        command = Path(f"/proc/{broker.pid}/cmdline").read_text()
        assert "UseG1GC" in command
        assert "TieredStopAtLevel" not in command
        client = admin.AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        resource = admin.ConfigResource(admin.ResourceType.BROKER, "1")
        values = client.describe_configs([resource])[resource].result(30)
        changed = {name for name, value in values.items() if not value.is_default and name.endswith(".ms")}
        assert changed == {"group.initial.rebalance.delay.ms", "log.retention.ms"}
        make_topic(broker, "facts")
        write(broker, "facts", b"one")
        assert read(broker, "facts", 1) == [b"one"]


def test_a_broker_dies_with_its_owner_even_when_that_is_killed(broker: KafkaBroker) -> None:
    script = """
import time
from millstream.testing import KafkaBroker, PostgresServer
from tests.waiting import until
with KafkaBroker() as broker:
    print(broker.pid, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        os.kill(pid, 0)  # it lives
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < deadline, f"broker {pid} outlived its owner"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# PostgreSQL


def rows_of(address: str) -> list[tuple[object, ...]]:
    with psycopg.connect(address) as db:
        return db.execute("SELECT n FROM facts ORDER BY n").fetchall()


def test_a_postgresql_server_keeps_its_data_over_a_restart_and_a_crash(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.address) as db:
        db.execute("CREATE TABLE facts AS SELECT 1 AS n")
    first = own_postgres.pid
    own_postgres.restart()
    assert own_postgres.pid != first
    with psycopg.connect(own_postgres.address) as db:
        db.execute("INSERT INTO facts VALUES (2)")
    own_postgres.kill()
    assert own_postgres.pid is None
    with pytest.raises(psycopg.OperationalError):
        rows_of(own_postgres.address)
    own_postgres.start()
    assert rows_of(own_postgres.address) == [(1,), (2,)]


POSTGRES_OWNER = """
import sys, time
from millstream.testing import PostgresServer
with PostgresServer() as server:
    print(server.pid, server.address, flush=True)
    time.sleep(300)
"""


def test_a_postgresql_server_does_not_outlive_its_owner(postgres: PostgresServer) -> None:
    owner = subprocess.Popen([sys.executable, "-c", POSTGRES_OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, address = owner.stdout.readline().split()
    psycopg.connect(address).close()
    owner.kill()
    owner.communicate(timeout=30)
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_machine_without_postgresql_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("millstream.testing.postgres._FOLDERS", (str(tmp_path),))
    with pytest.raises(MachineError, match="no PostgreSQL server of version 15") as caught:
        PostgresServer()
    assert "apt-get install postgresql" in caught.value.hint
