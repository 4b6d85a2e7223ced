"""Whether a pipeline could read an event, by its definitions: what would become a dead letter as malformed is told to its sender.

The reason is that of the dead letter. Where only Spark can tell, the event is taken: there is no guess. Late and future events are
no mistake of a sender's, and are taken as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from millstream.decode.decoder import Decoder, FeedDecoder
from millstream.decode.leftovers import judge, to_records
from millstream.errors import NeedsSpark
from millstream.event import Event, Record, to_millis
from millstream.kernel.host import Host
from millstream.pipeline import Pipeline
from millstream.plan.build import ViewPlan, build_chain


class Definitions:
    """What pipelines say of the topics that they read. Used by one thread."""

    def __init__(self, pipelines: Iterable[Pipeline]) -> None:
        self._decoders: dict[str, list[tuple[str, FeedDecoder]]] = {}
        for pipeline in pipelines:
            pipeline.validate()
            views = [
                ViewPlan(each.name, each.node, each.to, each.emit, each.key, each.refused)
                for each in pipeline.views.values()
            ]
            chain = build_chain(views, buckets=1, to=pipeline.to, functions=pipeline.udf.all)
            admission = Host(chain, {feed.number: 1 for feed in chain.feeds}).admission
            for topic, decoder in Decoder(admission, utc=True).feeds.items():
                if isinstance(decoder, FeedDecoder):
                    self._decoders.setdefault(topic, []).append((pipeline.name, decoder))

    def reasons(self, topic: str, events: Sequence[Event]) -> dict[int, str]:
        """Why events cannot be used, by their place."""
        found: dict[int, str] = {}
        now = int(time.time() * 1000)
        records = [
            Record(topic, 0, place, event.key, event.value, now if event.time is None else to_millis(event.time), now, event.headers)
            for place, event in enumerate(events)
        ]  # fmt: skip
        for pipeline, decoder in self._decoders.get(topic, ()):
            for place, reason in _reasons(pipeline, decoder, records):
                found.setdefault(place, reason)
        return found


def _reasons(pipeline: str, decoder: FeedDecoder, records: Sequence[Record]) -> Iterable[tuple[int, str]]:
    _, left = decoder.decode(0, to_records(records))
    for record, is_left in zip(records, left, strict=True):
        if is_left:
            try:
                frame = judge(decoder, pipeline, 0, [record])
            except NeedsSpark:
                continue
            for reason in frame.get_column("_bad").drop_nulls():
                yield record.offset, reason
