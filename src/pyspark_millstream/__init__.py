"""How Spark finds ``format("millstream")`` by itself: it looks for modules called ``pyspark_…`` with a DefaultSource."""

from millstream.spark.source import MillstreamSource as DefaultSource

__all__ = ["DefaultSource"]
