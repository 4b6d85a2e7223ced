"""How Spark finds ``format("millstream-kafka")`` by itself: it looks for modules called ``pyspark_…`` with a DefaultSource."""

from millstream.spark.kafka_source import KafkaSource as DefaultSource

__all__ = ["DefaultSource"]
