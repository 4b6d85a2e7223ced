"""What an erasure is refused for, before anything is changed: what it could not do as a whole it does not begin."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from millstream.errors import ConfigError, EraseError, NotSupported, ViewStoreUnavailable
from millstream.pipeline import Pipeline
from millstream.relation.nodes import source_of
from millstream.runtime.checkpoint import BATCH
from millstream.runtime.diff import last_of
from millstream.runtime.rebuild import check_history
from millstream.store import open_reader, open_writer


def check(pipelines: Sequence[Pipeline], stores: Sequence[str], topics: Collection[str]) -> list[Pipeline]:
    """Refuse what cannot be erased; give the pipelines whose views must be computed anew."""
    names = [pipeline.name for pipeline in pipelines]
    if len(set(names)) < len(names):
        raise ConfigError(f"found the pipelines {', '.join(names)}, expected each once")
    for pipeline in pipelines:
        if pipeline.sinks:
            raise NotSupported(
                f"pipeline {pipeline.name}: what its sinks {', '.join(pipeline.sinks)} were sent is not erased by this version",
                hint="take the sinks out of the definition once what they were sent is erased where it is",
            )
        for view in pipeline.views.values():
            if not view.kept:
                raise NotSupported(
                    f"pipeline {pipeline.name}: view {view.name} is kept nowhere, so it cannot be made anew"
                )
    _refuse_others(names, stores, topics)
    ran = [pipeline for pipeline in pipelines if _reads(pipeline, topics) and _has_run(pipeline)]
    for pipeline in ran:
        check_history(pipeline, forget=False)
    return ran


def _reads(pipeline: Pipeline, topics: Collection[str]) -> bool:
    return any(source_of(each.node).topic in topics for each in (*pipeline.streams.values(), *pipeline.tables.values()))


def _has_run(pipeline: Pipeline) -> bool:
    last = last_of(pipeline)
    if last is not None and last.checkpoint.startswith(BATCH):
        raise NotSupported(
            f"pipeline {pipeline.name}: its views were made by a batch, and nothing goes on from there",
            hint="erase without this FILE's views: remove them first, and run the batch again afterwards",
        )
    return last is not None


def _refuse_others(names: Collection[str], stores: Sequence[str], topics: Collection[str]) -> None:
    """Refuse where a store has views of a pipeline that reads one of these topics and was not named: they would keep what they have."""
    for address in stores:
        kept = set[str]()
        with suppress(ViewStoreUnavailable), open_reader(address) as store:  # none of them has run yet
            kept = {info.pipeline.partition("~")[0] for info in store.views()} - set(names)
        if not kept:
            continue
        with open_writer(address) as writer:
            for name in sorted(kept):
                last = writer.last(name)
                read = sorted(set(last.offsets) & set(topics)) if last is not None else []
                if read:
                    raise EraseError(
                        f"{address}: pipeline {name} reads topic {read[0]} and was not named, so its views would keep what they have",
                        hint="name the FILE that defines it as well",
                    )
