"""From Kafka through Spark into PostgreSQL and on to Kafka, killed again and again, the broker restarted: nothing lost, nothing twice."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.log import Log, open_log
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.store import open_reader
from millstream.testing import KafkaBroker, PostgresServer
from tests.runtime.shop_file import TEXT, Child, append_clicks, click, load, write_shop

SINK = 'shop.sink("out", shop.views["by_user"], "topic:out")\n'
ROUNDS, EACH = 4, 150


def changes(log: Log, topic: str) -> dict[int, list[dict[str, Any]]]:
    """What a reader of committed records sees of each key, in order."""
    found: dict[int, list[dict[str, Any]]] = {}
    for partition, bound in log.bounds(topic).items():
        for record in log.read(topic, partition, bound.start, bound.end):
            assert record.value is not None
            found.setdefault(json.loads(record.key or b"")["user"], []).append(json.loads(record.value))
    return found


@pytest.mark.timeout(900)
@pytest.mark.campaign
def test_input_counted_against_output_through_kills_and_a_broker_restart(
    spark: SparkSession, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    chance = random.Random(7)
    with KafkaBroker() as broker:
        file = tmp_path / "shop.py"
        text = (TEXT + SINK).replace("sqlite:{folder}/log.db", broker.url)
        file.write_text(
            text.replace("sqlite:{folder}/views.db", own_postgres.address).replace("{folder}", str(tmp_path))
        )
        with open_log(broker.url) as log:
            log.create_topic("clicks", 2)
            log.create_topic("out", 2)
        for round_ in range(ROUNDS):
            with open_log(broker.url) as log:
                for first in range(round_ * EACH, (round_ + 1) * EACH, 50):
                    log.append("clicks", [click(number) for number in range(first, first + 50)])
            child = Child("run", file, "--rate-limit", 40, "--json")
            try:
                assert child.process.stdout is not None
                while (json.loads(child.process.stdout.readline())["batch"] or 0) <= 2 * round_:
                    pass  # a batch may be one that came again, or have records of one partition alone: two new ones a round
                threading.Event().wait(chance.random() * 2)  # anywhere in what comes next
                child.kill()
                child.wait()
                child.leaves_nothing()
            finally:
                child.end()
            if round_ == 1:
                broker.kill()
                broker.start()
            if round_ == 2:
                own_postgres.kill()
                own_postgres.start()
        shop = load(file)
        run(shop, spark=spark, once=True)
        clicks = [click(number) for number in range(ROUNDS * EACH)]
        good = [json.loads(event.value) for event in clicks if event.value and event.value != b"nonsense"]
        with open_reader(shop.to) as store:
            counts = store.admission("shop").to_pylist()
        assert sum(row["records"] for row in counts) == len(clicks)
        assert sum(row["malformed"] for row in counts) == len(clicks) - len(good)
        late = sum(row["late"] for row in counts)
        held = shop.views["by_user"].to_arrow().to_pylist()
        assert sum(row["n"] for row in held) + late == len(good)
        everyone = Counter(each["user"] for each in good)
        assert all(row["n"] <= everyone[row["user"]] for row in held)
        verified = verify(shop, spark=spark)
        assert verified.equal, verified
        with open_log(broker.url) as log:
            sent = changes(log, "out")
        assert [rows[-1] for _, rows in sorted(sent.items())] == held
        for rows in sent.values():
            numbers = [row["n"] for row in rows]
            assert numbers == sorted(set(numbers)), numbers  # each change once, and in order
        assert max(map(len, sent.values())) > ROUNDS


@pytest.mark.parametrize(("limit", "most"), [(None, 1), (60, 10)])
def test_the_end_of_all_time_comes_with_the_last_batch(
    spark: SparkSession, tmp_path: Path, limit: int | None, most: int
) -> None:
    file = write_shop(tmp_path)
    append_clicks(tmp_path, 0, 200)
    seen: list[int | None] = []
    last = run(load(file), spark=spark, close=True, rate_limit=limit, progress=lambda each: seen.append(each.batch))
    assert 1 <= len(set(seen)) <= most
    assert limit is None or len(set(seen)) > 3
    assert last.watermark is not None
    assert last.watermark.year == 9999
    assert last.lag == 0
