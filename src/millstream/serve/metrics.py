"""``/metrics``: how the log and the pipelines stand, as OpenMetrics has it; read from the log and the ledgers, not from a process.

So a counter of records goes on where it was when whatever counts is started again. Labels are names of topics, partitions, groups,
pipelines and kernels, never keys. What the server itself has counted begins with ``millstream_serve_`` and begins anew with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from millstream.errors import MillstreamError, UnknownTopic
from millstream.log.contract import Bounds, Log
from millstream.log.lag import group_lag
from millstream.pipeline import Pipeline
from millstream.serve.committer import Committer
from millstream.store import StoreReader, open_reader

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_VERDICTS = ("admitted", "late", "duplicate", "future", "malformed")
_FRESH = 1.0  # seconds for which an answer is good enough for the next who asks


@dataclass
class Family:
    """A metric: what it is, and its values by their labels."""

    name: str
    kind: str
    help: str
    samples: list[tuple[Mapping[str, object], float]] = field(default_factory=list)

    def add(self, value: float, **labels: object) -> None:
        """One more value."""
        self.samples.append((labels, value))

    def lines(self) -> Iterable[str]:
        """As text."""
        yield f"# TYPE {self.name} {self.kind}"
        yield f"# HELP {self.name} {self.help}"
        end = "_total" if self.kind == "counter" else ""
        for labels, value in self.samples:
            said = ",".join(f'{name}="{_escaped(str(each))}"' for name, each in labels.items())
            yield f"{self.name}{end}{f'{{{said}}}' if said else ''} {value:.15g}"


def expose(families: Iterable[Family]) -> str:
    r"""Metrics as OpenMetrics text.

    >>> one = Family("rows", "counter", "Rows.")
    >>> one.add(2, view='a"b')
    >>> print(expose([one]), end="")
    # TYPE rows counter
    # HELP rows Rows.
    rows_total{view="a\"b"} 2
    # EOF
    """
    return "".join(f"{line}\n" for each in families for line in each.lines()) + "# EOF\n"


class Metrics:
    """What is told of a log, of pipelines, and of the server before them. Used by one thread at a time."""

    def __init__(self, log: Log, pipelines: Iterable[Pipeline], committer: Committer) -> None:
        self._log, self._committer = log, committer
        self._stores: dict[str, str] = {}  # every store of a pipeline has its whole ledger: one is enough
        for pipeline in pipelines:
            for view in pipeline.views.values():
                if view.kept:
                    self._stores.setdefault(pipeline.name, view.to)
        self._text, self._at = "", 0.0

    def text(self) -> str:
        """All of it, not older than a second."""
        if not self._text or time.monotonic() - self._at > _FRESH:
            ends = {topic.name: self._log.bounds(topic.name) for topic in self._log.topics()}
            self._text = expose([*_topics(ends), *_groups(self._log), *self._pipelines(ends), *self._server()])
            self._at = time.monotonic()
        return self._text

    def _pipelines(self, ends: Mapping[str, Mapping[int, Bounds]]) -> list[Family]:
        told = Pipelines()
        for pipeline, address in self._stores.items():
            try:
                with open_reader(address) as store:
                    told.read(pipeline, store, ends)
            except MillstreamError:
                told.up.add(0, pipeline=pipeline)
        return told.families()

    def _server(self) -> list[Family]:
        totals = self._committer.totals
        away = Family("millstream_serve_log_away", "gauge", "Whether the last append found the log away.")
        away.add(self._committer.away)
        counted = (
            ("requests", totals.requests, "Requests that were appended."),
            ("events", totals.events, "Events that were appended."),
            ("refused", totals.refused, "Requests that were refused by definitions or the log."),
            ("repeated", totals.repeated, "Requests whose idempotency key was there already."),
            ("appends", totals.appends, "Appends, each of one request or more."),
            ("append_seconds", totals.seconds, "Seconds that appends took."),
        )
        families = [Family(f"millstream_serve_{name}", "counter", text) for name, _, text in counted]
        for family, (_, value, _) in zip(families, counted, strict=True):
            family.add(value)
        return [away, *families]


@dataclass
class Pipelines:
    """What the ledgers tell."""

    up: Family = field(default_factory=lambda: _gauge("up", "Whether the pipeline's store can be read."))
    batch: Family = field(default_factory=lambda: _gauge("batch", "The last batch that is in the ledger."))
    committed: Family = field(
        default_factory=lambda: _gauge("committed_timestamp_seconds", "When that batch was committed.")
    )
    lag: Family = field(
        default_factory=lambda: _gauge("lag_records", "Records of the log behind the ledger's offsets.")
    )
    watermark: Family = field(
        default_factory=lambda: _gauge("watermark_timestamp_seconds", "The watermark of a partition.")
    )
    rows: Family = field(default_factory=lambda: _gauge("state_rows", "Rows that kernels keep."))
    size: Family = field(default_factory=lambda: _gauge("state_bytes", "Bytes that kernels keep."))
    records: Family = field(
        default_factory=lambda: Family(
            "millstream_pipeline_records", "counter", "What became of records, since the beginning of the views."
        )
    )

    def read(self, pipeline: str, store: StoreReader, ends: Mapping[str, Mapping[int, Bounds]]) -> None:
        """What one store tells of a pipeline."""
        self.up.add(1, pipeline=pipeline)
        last = store.last(pipeline)
        if last is None:
            return
        self.batch.add(last.batch, pipeline=pipeline)
        self.committed.add(last.committed_at.timestamp(), pipeline=pipeline)
        for topic, offsets in last.offsets.items():
            for partition, bound in ends.get(topic, {}).items():
                at = max(offsets.get(partition, bound.start), bound.start)
                self.lag.add(max(0, bound.end - at), pipeline=pipeline, topic=topic, partition=partition)
        held: dict[str, tuple[int, int]] = {}
        for place, (rows, size, _) in last.state.get("held", {}).items():
            kernel = place.partition(":")[0]
            before = held.get(kernel, (0, 0))
            held[kernel] = before[0] + rows, before[1] + size
        for kernel, (rows, size) in held.items():
            self.rows.add(rows, pipeline=pipeline, kernel=kernel)
            self.size.add(size, pipeline=pipeline, kernel=kernel)
        for row in store.admission(pipeline).to_pylist():
            labels = {"pipeline": pipeline, "topic": row["topic"], "partition": row["partition"]}
            for verdict in _VERDICTS:
                self.records.add(row[verdict], **labels, verdict=verdict)
            if row["watermark"] is not None:
                with suppress(OverflowError, ValueError):
                    self.watermark.add(row["watermark"].timestamp(), **labels)

    def families(self) -> list[Family]:
        """All of them."""
        return [self.up, self.batch, self.committed, self.lag, self.watermark, self.rows, self.size, self.records]


def _gauge(name: str, text: str) -> Family:
    return Family(f"millstream_pipeline_{name}", "gauge", text)


def _topics(ends: Mapping[str, Mapping[int, Bounds]]) -> list[Family]:
    start = Family("millstream_topic_start_offset", "gauge", "The first offset that a partition still has.")
    end = Family("millstream_topic_end_offset", "gauge", "The next offset of a partition.")
    for topic, found in ends.items():
        for partition, bound in found.items():
            start.add(bound.start, topic=topic, partition=partition)
            end.add(bound.end, topic=topic, partition=partition)
    return [start, end]


def _groups(log: Log) -> list[Family]:
    records = Family("millstream_group_lag_records", "gauge", "Records that a group has not committed.")
    seconds = Family("millstream_group_lag_seconds", "gauge", "How long the first of them has been waiting.")
    with suppress(UnknownTopic):  # deleted meanwhile
        for lag in group_lag(log):
            labels = {"group": lag.group, "topic": lag.topic, "partition": lag.partition}
            records.add(lag.records, **labels)
            seconds.add(lag.seconds, **labels)
    return [records, seconds]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
