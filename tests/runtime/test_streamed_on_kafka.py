"""Streamed = computed by hand on Kafka too: random pipelines over topics that progress at different speeds, cut at any rate limit, with crashes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.failpoint import armed
from millstream.log import open_log
from millstream.runtime.run import run
from millstream.runtime.verify import verify
from millstream.testing import KafkaBroker
from tests.runtime.random_shop import Shop, Supply, expected, stored


@pytest.mark.parametrize(
    ("seed", "limit", "numbered"),
    [
        pytest.param(1, 1, False, id="1", marks=pytest.mark.campaign),
        pytest.param(2, 7, False, id="7"),
        pytest.param(4, 40, True, id="40 with sequences", marks=pytest.mark.campaign),
    ],
)
def test_a_random_pipeline_on_kafka_has_the_views_that_python_says_whatever_the_rate_limit(
    seed: int, limit: int, numbered: bool, spark: SparkSession, tmp_path: Path
) -> None:
    shop, supply, chance = Shop(seed, numbered=numbered), Supply(seed), random.Random(seed)
    with KafkaBroker() as broker, open_log(broker.url) as log:
        made = shop.pipeline("streamed", tmp_path, broker.url)
        for topic in ("clicks", "notes", "users"):
            log.create_topic(topic, shop.partitions)
        for crashes in (False, True):
            left = {"clicks": 8 * limit, "notes": 2 * limit, "users": 4 * limit}
            while any(left.values()):  # one topic is far ahead of another at any time
                topic = chance.choice([name for name, count in left.items() if count])
                count = min(left[topic], chance.randint(1, 3 * limit))
                log.append(topic, getattr(supply, topic)(count))
                left[topic] -= count
            if crashes:
                with armed("store.before_commit"), pytest.raises(Exception, match=r"failpoint store\.before_commit"):
                    run(made, spark=spark, once=True, rate_limit=limit)
            last = run(made, spark=spark, once=True, rate_limit=limit)
            assert last.batch is not None
            assert last.batch >= 14  # it was cut
            assert stored(made) == expected(shop, made, log)[0]
        verified = verify(made, spark=spark)
        assert verified.equal, verified
        assert verified.records == 28 * limit
