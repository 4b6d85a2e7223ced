"""A batch in this process: records of a log are decoded, admitted and put through the kernels, stage by stage.

The parts are those of a run on Spark; a loop takes the place of Spark between them. Without a session, what only Spark can compute
is NeedsSpark, never a guess.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from millstream.decode.decoder import Decoder, FeedDecoder
from millstream.decode.leftovers import judge, to_records
from millstream.errors import NeedsSpark
from millstream.event import Record
from millstream.kernel.exchange.chunk import Chunk
from millstream.kernel.host import Host
from millstream.kernel.schemas import raw_schemas
from millstream.kernel.state.store import Memory
from millstream.log import Log
from millstream.log.heartbeat import Beat
from millstream.plan.build import Chain
from millstream.runtime.analysis_errors import analysed
from millstream.runtime.delivery import target_of
from millstream.typecheck.inference import check_types
from millstream.view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Offsets = Mapping[str, Mapping[int, int]]
Stores = MutableMapping[tuple[int, int, int], Memory]


class Local:
    """A chain that runs in this process; ``partitions`` of each topic are known from the start.

    What does not fit together in ``views`` is refused at its place.
    """

    def __init__(
        self,
        name: str,
        chain: Chain,
        partitions: Mapping[str, int],
        spark: SparkSession | None = None,
        views: Collection[View] = (),
    ) -> None:
        self.name, self.chain, self.spark = name, chain, spark
        self.host = Host(chain, {feed.number: partitions[feed.source.topic] for feed in chain.feeds})
        self.decoder = Decoder(
            self.host.admission, utc=spark is None or spark.conf.get("spark.sql.session.timeZone") == "UTC"
        )
        with analysed(spark, views):
            self.host.types = self._types()
            check_types([view.node for view in views], chain, self.host.types)
            raw = raw_schemas(chain, self.host.types)
            self.targets = {each.name: target_of(spark, each, raw[each.name]) for each in chain.outputs}

    def run(
        self, log: Log, starts: Offsets, ends: Offsets, stores: Stores, beats: Collection[Beat] = ()
    ) -> list[Chunk]:
        """Compute a batch of the log, with heartbeats, and return the chunks for the driver.

        ``stores`` hold the state before it, and then that after it.
        """
        chunks = [
            chunk
            for topic, found in ends.items()
            for partition, end in found.items()
            for chunk in self._chunks(log, topic, partition, starts[topic][partition], end)
        ]
        chunks += self.host.admission.tell(beats)
        for stage in self.chain.stages:
            chunks = self.host.run_stage(stage, chunks, stores)
        return chunks

    def _chunks(self, log: Log, topic: str, partition: int, start: int, end: int) -> Iterator[Chunk]:
        """The new records of a partition, decoded and packed."""
        records = log.read(topic, partition, start, end - start) if end > start else []
        records = [record for record in records if record.offset < end]  # a compacted topic has gaps
        made, left = self.decoder.pack(topic, partition, to_records(records))
        yield from made
        rest = [record for record, is_left in zip(records, left, strict=True) if is_left]
        decoder = self.decoder.feeds[topic]
        if rest and self.spark is not None:
            yield from self._by_spark(self.spark, rest)
        elif rest and isinstance(decoder, FeedDecoder):
            frame = judge(decoder, self.name, partition, rest)
            yield from self.host.admission.pack_feed(decoder.feed, partition, frame)

    def _by_spark(self, spark: SparkSession, records: list[Record]) -> Iterator[Chunk]:
        """Decode records as a running pipeline does."""
        from millstream.spark.fast_path import HEADERS, RAW
        from millstream.spark.lowering import decode

        rows = [(r.key, r.value, r.topic, r.partition, r.offset, r.time, r.append_time) for r in records]
        columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), RAW.values(), strict=True)]
        columns.append(
            pa.array([[{"key": name, "value": value} for name, value in r.headers] for r in records], HEADERS)
        )
        frame = spark.createDataFrame(pa.Table.from_arrays(columns, [*RAW, "headers"]))
        for batch in decode(frame, self.chain, self.name).toArrow().to_batches():
            yield from self.host.admission.pack(batch)

    def _types(self) -> Mapping[int, pl.Schema]:
        """The types of each feed's expressions; NeedsSpark if only Spark knows them."""
        if self.spark is not None:
            from millstream.runtime.setup import empty_records
            from millstream.spark.lowering import decode, feed_types

            return feed_types(decode(empty_records(self.spark), self.chain, self.name), self.chain)
        types = {}
        for topic, decoder in self.decoder.feeds.items():
            if isinstance(decoder, str):
                raise NeedsSpark(
                    f"topic {topic}: {decoder} is not computed without Spark",
                    hint="give the trial a session: trial(…, spark=spark_session())",
                )
            schema = decoder.decode(0, to_records([]))[0].schema
            types[decoder.feed.number] = pl.Schema({each.name: schema[each.name] for each in decoder.feed.expressions})
        return types
