"""Where the time goes: what each stage of a query costs by itself, and what is left of the whole.

The stages run once more in this process, without Spark, over the same log: read, decode, send, kernels. What the processes of a run on
Spark take beyond that is Spark's: its JVM, and the Python around ours.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from millstream.bench import Result
from millstream.bench.nexmark.data import fill, read_folder, write_folder
from millstream.bench.nexmark.queries import PATTERNS, fill_side, pipeline_of, topic_of
from millstream.bench.nexmark.run import Place, Say, timed
from millstream.decode.decoder import FeedDecoder
from millstream.decode.leftovers import to_records
from millstream.kernel.exchange.chunk import Chunk
from millstream.kernel.state.store import Memory
from millstream.local.batch import Local
from millstream.log.embedded.engine import SqliteLog
from millstream.log.embedded.scan import Part, scan_values
from millstream.pipeline import Pipeline
from millstream.runtime.setup import as_it_runs, chain_of
from millstream.spark.engine import CHUNK
from millstream.spark.fast_path import records_of
from millstream.spark.session import spark_session

STAGES = ("read", "decode", "send", "kernels")
_TICKS = os.sysconf("SC_CLK_TCK")


def measure(queries: Sequence[str], events: int, seed: int, folder: Path, say: Say) -> Iterator[Result]:
    """Processor seconds for a million events by stage, and wall seconds that a run spends outside its batches."""
    say(f"making {events:,} events")
    log = f"sqlite:{folder / 'log.db'}"
    fill_side(log)
    data = write_folder(folder / "data", events, seed)
    for by_auction, query in {query in PATTERNS: query for query in queries}.items():
        fill(log, read_folder(data), topic=topic_of(query), by_auction=by_auction)
    place, spark = Place(folder, data, data, log, events), spark_session("millstream-bench")
    for query in queries:
        say(f"{query}: on Spark")
        timed(spark, query, place, kept=False)
        before = _used(os.getpid())
        done = timed(spark, query, place, kept=False)
        used = {kind: seconds - before.get(kind, 0.0) for kind, seconds in _used(os.getpid()).items()}
        say(f"{query}: stage by stage")
        alone = _alone(pipeline_of(query, log, folder / f"alone-{query}", topic=topic_of(query), kept=False))
        for name in STAGES:
            yield Result(f"{query}.{name}", alone[name] / events * 1e6, "s/M events")
        yield Result(f"{query}.spark_python", (used["python"] - sum(alone.values())) / events * 1e6, "s/M events")
        yield Result(f"{query}.spark_jvm", used["java"] / events * 1e6, "s/M events")
        yield Result(f"{query}.outside_batches", done.seconds - done.busy, "s")


def _alone(pipeline: Pipeline) -> dict[str, float]:
    """Run a pipeline's stages in this process: processor seconds of each."""
    seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def counted(stage: str) -> Iterator[None]:
        began = time.process_time()
        yield
        seconds[stage] += time.process_time() - began

    chain = as_it_runs(pipeline, chain_of(pipeline, os.cpu_count() or 1, early=True))
    chunks: list[Chunk] = []
    with SqliteLog(pipeline.log.removeprefix("sqlite:"), create=False) as log:
        topics = [feed.source.topic for feed in chain.feeds]
        local = Local(pipeline.name, chain, {topic: len(log.bounds(topic)) for topic in topics})
        host, admission, decoder = local.host, local.host.admission, local.decoder
        for topic in topics:
            feed = decoder.feeds[topic]
            assert isinstance(feed, FeedDecoder)  # noqa: S101
            for partition, bound in log.bounds(topic).items():
                gate, at = decoder.gate(topic, None), bound.start
                while at < bound.end:
                    with counted("read"):
                        if decoder.wants_all(topic):
                            records = to_records(log.read(topic, partition, at, CHUNK))
                        else:
                            values = scan_values(log, Part(topic, partition, at, bound.end), CHUNK, decoder.reserved)
                            if values is None:  # the end of all time, of a run on Spark
                                break
                            records = records_of(values)
                        at = int(records.offsets[-1]) + 1
                    with counted("decode"):
                        frame, _ = feed.decode(partition, records)
                    with counted("send"):
                        if gate is None:
                            chunks += admission.pack_feed(feed.feed, partition, frame)
                        else:
                            chunks += admission.pass_gate(feed.feed, partition, frame, gate, whole=True)
                if gate is not None:
                    chunks += decoder.leave(topic, partition, gate)
    stores: defaultdict[tuple[int, int, int], Memory] = defaultdict(Memory)
    with counted("kernels"):
        for stage in chain.stages:
            chunks = host.run_stage(stage, chunks, stores)
    return seconds


def _used(root: int) -> dict[str, float]:
    """Processor seconds of a process and all below it, by kind; as Linux tells."""
    found: dict[int, tuple[str, int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:  # it has just ended
            continue
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        ended = fields[13:15] if name != "java" else ()  # what children took that have ended; java's are of no weight
        found[int(path.parent.name)] = (name, int(fields[1]), sum(map(int, (*fields[11:13], *ended))) / _TICKS)
    below, used = {root}, {"java": 0.0, "python": 0.0}
    for pid in sorted(found):
        name, parent, seconds = found[pid]
        if pid == root or parent in below:
            below.add(pid)
            used["java" if name == "java" else "python"] += seconds
    return used
