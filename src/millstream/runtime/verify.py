"""Verify: compute every view anew from the log, in one batch, and compare it with what is stored.

The batch reads the records from where the pipeline began up to the offsets in its ledger, and goes the way of the stream:
the same expressions, admission and kernels, but over everything at once, from no state. Streamed = batch is what it proves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from millstream.errors import PipelineError
from millstream.kernel.zset import WEIGHT
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.plan.build import Chain
from millstream.runtime.failure import tells_room
from millstream.runtime.progress_report import logs
from millstream.runtime.replay import entries_of, position_of, replay
from millstream.runtime.setup import chain_of
from millstream.runtime.topic_identity import check_past
from millstream.spark.session import jvm_told
from millstream.store import Entry, open_reader
from millstream.store.contract import COUNTED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNT = "_count"
_LOOKS = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """How a view differs: rows that the log gives and the view lacks, and rows that the view has and the log does not give."""

    view: str
    rows: int
    missing: int
    extra: int
    examples: tuple[tuple[str, dict[str, Any]], ...] = ()

    @property
    def equal(self) -> bool:
        """Whether there is none."""
        return not self.missing and not self.extra


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome: for each view its difference, and the records that were read; views that are kept nowhere are skipped.

    :param pipeline: its name
    :param batch: the batch whose views were compared
    :param records: how many records were read
    :param views: for each view its difference
    :param skipped: the views that are kept nowhere

    >>> Verification("shop", 7, 1_000, ()).equal
    True
    """

    pipeline: str
    batch: int
    records: int
    views: tuple[Difference, ...]
    skipped: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether every view is what the log says."""
        return all(view.equal for view in self.views)


@logs("a verification")
@jvm_told()
@tells_room
def verify(pipeline: Pipeline, *, spark: SparkSession | None = None) -> Verification:
    """Recompute every view from the log at the ledger's offsets and compare; nothing is written.

    Raises OffsetOutOfRange, naming the range, where the log no longer has what the views were made from.

    :param pipeline: the pipeline
    :param spark: the session to compute in; one is started if there is none
    """
    chain = chain_of(pipeline)
    with open_log(pipeline.log, create=False, kafka=pipeline.kafka) as log:
        entry, stored, admission = _snapshot(pipeline, chain)
        position = position_of(entry)
        check_past(log, pipeline.name, position)
    replayed = replay(pipeline, chain, entry, position, spark)
    counts = replayed.computed.arrived.counts
    differences = [compare(name, made, stored[name]) for name, made in replayed.taken.items() if name in stored]
    differences.append(_compare_counts(admission, counts))
    skipped = tuple(output.name for output in chain.outputs if not output.kept)
    return Verification(pipeline.name, entry.batch, sum(count.records for count in counts), tuple(differences), skipped)


def _last(pipeline: Pipeline, address: str) -> Entry:
    return entries_of(pipeline, address, 1)[0]


def _snapshot(pipeline: Pipeline, chain: Chain) -> tuple[Entry, dict[str, pa.Table], pa.Table]:
    """The newest entry, the views and the admission counts, all of one batch: a pipeline that runs may commit in between."""
    addresses = sorted({output.to for output in chain.outputs})
    for _ in range(_LOOKS):
        before = [_last(pipeline, address) for address in addresses]
        stored = {}
        for output in (each for each in chain.outputs if each.kept):
            with open_reader(output.to) as store:
                stored[output.name] = store.table(output.name)
        with open_reader(chain.outputs[0].to) as store:
            admission = store.admission(pipeline.name)
        if [_last(pipeline, address) for address in addresses] == before:
            return before[0], stored, admission
    raise PipelineError(
        f"pipeline {pipeline.name} commits faster than its views can be read", hint="stop it, then verify"
    )


def compare(view: str, made: pa.Table, stored: pa.Table, *, shown: int = 5) -> Difference:
    """Compare what the log gives (with weights) with the stored rows, as bags of rows."""
    names = stored.column_names
    wanted = _bag(made.select([*names, WEIGHT]), names, pl.col(WEIGHT).sum())
    found = _bag(stored, names, pl.len().cast(pl.Int64))
    both = wanted.join(found, on=names, how="full", coalesce=True, nulls_equal=True, suffix="_found")
    both = both.with_columns(pl.col(_COUNT).fill_null(0), pl.col(f"{_COUNT}_found").fill_null(0))
    gap = (pl.col(_COUNT) - pl.col(f"{_COUNT}_found")).alias("_gap")
    both = both.with_columns(gap).filter(pl.col("_gap") != 0).sort(names)
    examples = [
        ("missing" if row["_gap"] > 0 else "extra", {name: row[name] for name in names})
        for row in both.head(shown).iter_rows(named=True)
    ]
    missing = int(both.filter(pl.col("_gap") > 0)["_gap"].sum())
    extra = -int(both.filter(pl.col("_gap") < 0)["_gap"].sum())
    return Difference(view, stored.num_rows, missing, extra, tuple(examples))


def _bag(rows: pa.Table, names: list[str], count: pl.Expr) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)  # noqa: S101
    nested = [name for name in names if frame.schema[name].is_nested()]
    frame = frame.with_columns(pl.Series(name, [repr(value) for value in frame[name].to_list()]) for name in nested)
    return frame.group_by(names).agg(count.alias(_COUNT)).filter(pl.col(_COUNT) != 0)


def _compare_counts(admission: pa.Table, counts: list[Any]) -> Difference:
    """The admission ledger: in = admitted + late + duplicate + future + malformed + erased, partition by partition."""
    names = ["topic", "partition", *COUNTED]
    stored = admission.select(names)
    rows = [{name: getattr(count, name) for name in names} | {WEIGHT: 1} for count in counts]
    made = pa.Table.from_pylist(rows, stored.schema.append(pa.field(WEIGHT, pa.int64())))
    return compare("millstream_admission", made, stored)
