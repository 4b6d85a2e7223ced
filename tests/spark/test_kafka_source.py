"""``format("millstream-kafka")`` gives what Spark's own Kafka source gives of any topic, and refuses what it cannot promise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from millstream.errors import ConfigError
from millstream.spark.kafka_source import read_options
from millstream.testing.kafka import KafkaBroker
from tests.contracts.log import name

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")


@pytest.fixture(params=["CreateTime", "LogAppendTime"])
def topic(kafka: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic of somebody else's, with two partitions: plain records, committed and aborted ones, one without a value."""
    made = name()
    admin = AdminClient({"bootstrap.servers": servers(kafka)})
    new = NewTopic(made, 2, config={"message.timestamp.type": request.param})
    admin.create_topics([new])[made].result(30)
    plain = Producer({"bootstrap.servers": servers(kafka)})
    for i in range(40):
        plain.produce(
            made, b"%d" % i, b"k%d" % i, partition=i % 2, timestamp=1_700_000_000_000 + i, headers=[("n", b"%d" % i)]
        )
    plain.produce(made, None, b"gone", partition=0)
    plain.flush(30)
    theirs = Producer({"bootstrap.servers": servers(kafka), "transactional.id": made})
    theirs.init_transactions(30)
    for kept in (False, True):
        theirs.begin_transaction()
        for i in range(10):
            theirs.produce(made, b"%d %d" % (kept, i), partition=i % 2)
        theirs.flush(30)
        if kept:
            theirs.commit_transaction(30)
        else:
            theirs.abort_transaction(30)
    yield made
    admin.delete_topics([made])[made].result(30)


def servers(kafka: KafkaBroker) -> str:
    return kafka.url.removeprefix("kafka://")


def rows_of(frame: DataFrame) -> list[Row]:
    return frame.select(*COLUMNS, "headers").orderBy("partition", "offset").collect()


def test_a_batch_is_what_sparks_own_source_reads(spark: SparkSession, kafka: KafkaBroker, topic: str) -> None:
    options = {"kafka.bootstrap.servers": servers(kafka), "subscribe": topic, "includeHeaders": "true"}
    ours = rows_of(spark.read.format("millstream-kafka").options(**options).load())
    theirs = rows_of(
        spark.read.format("kafka").options(**options, **{"kafka.isolation.level": "read_committed"}).load()
    )
    assert len(ours) == 51
    assert ours == theirs


def test_a_range_is_cut_where_it_is_told(spark: SparkSession, kafka: KafkaBroker, topic: str) -> None:
    options = {
        "kafka.bootstrap.servers": servers(kafka),
        "assign": json.dumps({topic: [1]}),
        "startingOffsets": json.dumps({topic: {"1": 3}}),
        "endingOffsets": json.dumps({topic: {"1": 9}}),
    }
    ours = spark.read.format("millstream-kafka").options(**options).load()
    assert ours.columns == list(COLUMNS)
    assert [row.offset for row in ours.orderBy("offset").collect()] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("bound", ["startingTimestamp", "endingTimestamp"])
def test_a_time_means_what_it_means_to_sparks_own_source(
    bound: str, spark: SparkSession, kafka: KafkaBroker, topic: str
) -> None:
    options = {"kafka.bootstrap.servers": servers(kafka), "subscribe": topic, "includeHeaders": "true"}
    options[bound] = "1700000000021"
    theirs = spark.read.format("kafka").options(**options, **{"kafka.isolation.level": "read_committed"}).load()
    ours = rows_of(spark.read.format("millstream-kafka").options(**options).load())
    assert ours == rows_of(theirs)
    one = spark.read.format("millstream-kafka").options(**options).option("assign", json.dumps({topic: [1]})).load()
    assert one.count() == len([row for row in ours if row.partition == 1])


def test_a_stream_reads_everything_once_with_a_limit_and_after_a_restart(
    spark: SparkSession, kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    found: list[list[bytes | None]] = []
    options = {"kafka.bootstrap.servers": servers(kafka), "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format("millstream-kafka").options(**options).option("maxOffsetsPerTrigger", 15).load()

    def catch_up() -> None:
        query = (
            frame.writeStream.foreachBatch(lambda part, _: found.append([row.value for row in part.collect()]))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    catch_up()
    assert sum(map(len, found)) == 51
    assert max(map(len, found)) <= 15
    catch_up()
    assert sum(map(len, found)) == 51, "nothing is read twice"
    plain = Producer({"bootstrap.servers": servers(kafka)})
    plain.produce(topic, b"later", partition=1)
    plain.flush(30)
    catch_up()
    assert [bytes(value) for batch in found for value in batch if value is not None].count(b"later") == 1
    assert sum(map(len, found)) == 52


def test_a_range_that_is_gone_is_an_error_that_names_it(spark: SparkSession, kafka: KafkaBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers(kafka)})
    place = TopicPartition(topic, 0, 10)
    admin.delete_records([place])[place].result(30)
    reader = spark.read.format("millstream-kafka").option("kafka.bootstrap.servers", servers(kafka))
    for first, last, said in ((3, 20, "offsets 3 to 9"), (20, 5010, "beyond the end")):
        start, end = (json.dumps({topic: {"0": offset}}) for offset in (first, last))
        options = {"assign": json.dumps({topic: [0]}), "startingOffsets": start, "endingOffsets": end}
        with pytest.raises(PySparkException, match=said):
            reader.options(**options).load().collect()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"failOnDataLoss": "false"}, "failOnDataLoss"),
        ({"kafka.isolation.level": "read_uncommitted"}, "only committed"),
        ({"kafka.sasl.mechanism": "GSSAPI"}, "no Kerberos"),
        ({"kafka.sasl.jaas.config": "${env:JAAS}"}, "only Java"),
        ({"kafka.ssl.truststore.location": "store.jks"}, "only Java"),
        ({"kafka.sasl.password": "plain"}, "secret"),
        ({"subscribePattern": "a.*"}, "subscribepattern"),
        ({"startingOffsetsByTimestamp": "{}"}, "startingoffsetsbytimestamp"),
    ],
)
def test_what_cannot_be_promised_is_refused(option: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options({"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t", **option})
    assert said in str(caught.value)
    assert caught.value.hint


def test_a_missing_server_or_topic_is_named() -> None:
    with pytest.raises(ConfigError, match="bootstrap"):
        read_options({"subscribe": "t"})
    with pytest.raises(ConfigError, match="subscribe"):
        read_options({"kafka.bootstrap.servers": "localhost:9092"})
