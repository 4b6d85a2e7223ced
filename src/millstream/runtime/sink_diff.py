"""Sinks compared with the views that they follow, key by key, while both move.

A sink gets a batch before the store commits it, so for a moment it is ahead. What differs is looked at again when the pipeline has committed
another batch, or has not for a while: only a key that differs twice in the same way is reported.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple

import msgspec
import polars as pl

from millstream.pipeline import Pipeline
from millstream.relation.sinks import SinkDefinition
from millstream.runtime.replay import entries_of
from millstream.sink import json_rows, open_sink
from millstream.view import View

EXAMPLES = 20
_LOOKS = 5
_PAUSE = 0.2
PATIENCE = timedelta(seconds=10)
"""How long a pipeline may take from the send of a batch to its commit."""


class _Pair(NamedTuple):
    """Digests of both rows of a key; None where there is none."""

    view: bytes | None
    sink: bytes | None


@dataclass(frozen=True, slots=True)
class SinkDifference:
    """How a sink differs from its view: keys that it lacks, that it has beyond, and whose rows are others; the first of them."""

    sink: str
    view: str
    where: str
    rows: int = 0
    missing: int = 0
    extra: int = 0
    other: int = 0
    moving: int = 0
    """Keys that changed each time that they were looked at, so that nothing can be said."""
    skipped: str = ""
    """Why it was not compared."""
    examples: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.extra or self.other)


def compare_sinks(pipeline: Pipeline, *, patience: timedelta = PATIENCE) -> list[SinkDifference]:
    """Compare each sink of a pipeline with its view; nothing is written.

    :param pipeline: the pipeline, which must have run
    :param patience: how long it may take from the send of a batch to its commit
    :raises PipelineError: if it has not run yet
    """
    found: dict[str, SinkDifference] = {}
    before: dict[str, Mapping[str, _Pair]] = {wanted.name: {} for wanted in pipeline.sinks.values()}
    for look in range(_LOOKS):
        batches = _batches(pipeline)
        for name, differed in list(before.items()):
            wanted = pipeline.sinks[name]
            differing, found[name] = _looked(pipeline, wanted, pipeline.views[wanted.view], differed)
            if found[name].moving:
                before[name] = differing
            else:
                del before[name]
        if not before or look == _LOOKS - 1:
            break
        _wait(pipeline, batches, patience)
    return [found[name] for name in pipeline.sinks]


def _looked(
    pipeline: Pipeline, wanted: SinkDefinition, view: View, before: Mapping[str, _Pair]
) -> tuple[Mapping[str, _Pair], SinkDifference]:
    """What differs now, and what of it is sure: what differed so before."""
    nothing = SinkDifference(wanted.name, view.name, wanted.where)
    if not view.kept:
        return {}, replace(nothing, skipped="the view is kept nowhere: there is nothing to compare with")
    with open_sink(wanted, pipeline.name, view.key, log=pipeline.log, kafka=pipeline.kafka) as sink:
        held = sink.held()
        if held is None:
            return {}, replace(nothing, skipped=_why(wanted, view))
        there = _digests(held)
    rows = view.to_polars()
    differing = _differing(rows, view.key, there)
    kinds = {key: _kind(pair) for key, pair in differing.items() if before.get(key) == pair}
    counts = Counter(kinds.values())
    return differing, replace(
        nothing,
        rows=rows.height,
        missing=counts["missing"],
        extra=counts["extra"],
        other=counts["other"],
        moving=len(differing) - len(kinds),
        examples=tuple(f"{key}: {kind}" for key, kind in list(kinds.items())[:EXAMPLES]),
    )


def _why(wanted: SinkDefinition, view: View) -> str:
    if not isinstance(wanted.to, str):
        return "a function keeps nothing"
    if not view.key:
        return "the view has no key"
    return "rows expire" if wanted.to.startswith("redis") else "folders by columns: null and the empty text share one"


def _batches(pipeline: Pipeline) -> list[int]:
    """The newest batch in each store."""
    addresses = sorted({view.to for view in pipeline.views.values() if view.kept} or {pipeline.to})
    return [entries_of(pipeline, address, 1)[0].batch for address in addresses]


def _wait(pipeline: Pipeline, batches: list[int], patience: timedelta) -> None:
    """Until another batch was committed, or none is coming."""
    deadline = time.monotonic() + patience.total_seconds()
    while _batches(pipeline) == batches and time.monotonic() < deadline:
        time.sleep(_PAUSE)


def _differing(rows: pl.DataFrame, key: tuple[str, ...], there: dict[str, bytes]) -> dict[str, _Pair]:
    """What differs by key, but for rows that JSON cannot say: sinks have refused those."""
    sayable, _ = json_rows.writable(rows)
    wanted = _digests(_documents(rows, key))
    refused = wanted.keys() - {_plain(name) for name in json_rows.documents(sayable.select(key))}
    keys = [name for name, digest in wanted.items() if there.get(name) != digest and name not in refused]
    keys += [name for name in there if name not in wanted]
    return {name: _Pair(wanted.get(name), there.get(name)) for name in keys}


def _documents(rows: pl.DataFrame, key: tuple[str, ...]) -> Iterable[tuple[str, str]]:
    return zip(json_rows.documents(rows.select(key)), json_rows.documents(rows), strict=True)


def _digests(rows: Iterable[tuple[str, str]]) -> dict[str, bytes]:
    return {_plain(key): hashlib.blake2b(_plain(row).encode(), digest_size=16).digest() for key, row in rows}


def _plain(text: str) -> str:
    """JSON in one form; what is none, as somebody else may have written it, as it is."""
    try:
        return msgspec.json.encode(msgspec.json.decode(text), order="sorted").decode()
    except msgspec.DecodeError:
        return text


def _kind(pair: _Pair) -> str:
    if pair.sink is None:
        return "missing"
    return "extra" if pair.view is None else "other"
