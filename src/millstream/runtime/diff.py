"""What would change: a definition beside the one that runs, before anything is touched.

State belongs to a definition as a whole: a checkpoint is continued by the same views or not at all. So a change of one view
means that all are computed anew, and what matters is which views will differ and whether the log still has what that needs.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from millstream.errors import CheckpointMismatch, ViewStoreUnavailable
from millstream.explain.wording import Wording
from millstream.log import open_log
from millstream.log.archive import whole_bounds
from millstream.pipeline import Pipeline
from millstream.plan.state_layout import kernels
from millstream.runtime.checkpoint import folder_for, folder_of, read_checkpoint
from millstream.runtime.setup import chain_of
from millstream.store import Entry, open_reader, open_writer

Fate: TypeAlias = Literal["same", "changed", "new", "removed"]


@dataclass(frozen=True, slots=True)
class Gap:
    """Records of a partition that a rebuild would lack: those from ``first`` up to ``end``, which retention has taken."""

    topic: str
    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Change:
    """What a definition would change. ``kept`` and ``made`` are kernels whose state is as it would be, and those whose is not.

    ``records`` is how many a rebuild reads, of all topics. ``nowhere`` are the views of which no row is kept.
    """

    pipeline: str
    began: bool
    views: dict[str, Fate]
    kept: tuple[str, ...]
    made: tuple[str, ...]
    records: int
    gaps: tuple[Gap, ...]
    nowhere: tuple[str, ...] = ()

    @property
    def rebuild(self) -> bool:
        """Whether a run is refused without one."""
        return self.began and (bool(self.made) or set(self.views.values()) != {"same"})


def change_of(pipeline: Pipeline) -> Change:
    """Compare a definition with the checkpoint that its last run left; reads, and writes nothing."""
    chain = chain_of(pipeline)
    wanted = {name: pipeline.view_fingerprint(name) for name in pipeline.views}
    there = read_checkpoint(folder_for(folder_of(pipeline), last_of(pipeline)))
    if there is not None and there.pipeline != pipeline.name:
        raise CheckpointMismatch(
            f"pipeline {pipeline.name}: {pipeline.checkpoint} is of pipeline {there.pipeline}",
            hint="name another with checkpoint=",
        )
    known = there.views if there is not None else {}
    views: dict[str, Fate] = {
        name: "removed" if name not in wanted else "new" if name not in known else
        "same" if known[name] == wanted[name] else "changed"
        for name in sorted(known.keys() | wanted.keys())
    }  # fmt: skip
    state = there.kernels if there is not None else {}
    wording = Wording(chain)
    told = {key: f"{each.spec.title()}: {each.spec.does(wording.say(each))}" for key, each in kernels(chain).items()}
    records, gaps = 0, []
    with open_log(pipeline.log, create=False, kafka=pipeline.kafka) as log:
        for feed in chain.feeds:
            topic = feed.source.topic
            began = there.start.get(topic, {}) if there is not None else {}
            for partition, bound in whole_bounds(log, topic).items():
                records += bound.end - bound.start
                if began.get(partition, bound.start) < bound.start:
                    gaps.append(Gap(topic, partition, began[partition], bound.start))
    return Change(
        pipeline.name,
        there is not None,
        views,
        tuple(sorted(text for key, text in told.items() if key in state)),
        tuple(sorted(text for key, text in told.items() if key not in state)),
        records,
        tuple(gaps),
        tuple(view.name for view in pipeline.views.values() if not view.kept),
    )


def last_of(pipeline: Pipeline) -> Entry | None:
    """The newest entry of the ledger, if there is one."""
    with suppress(ViewStoreUnavailable):
        with open_reader(pipeline.to):  # opening a sink would make one
            pass
        with open_writer(pipeline.to) as writer:
            return writer.last(pipeline.name)
    return None
