"""The places of a pipeline: its stores claimed, its sinks opened, and versions of its views exchanged in them.

In each store an exchange is one transaction; one that was cut short between two stores is finished by the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa

from millstream.address import PostgresAddress, parse_address
from millstream.errors import CheckpointMismatch, PipelineError, TakenOver, UnknownView
from millstream.failpoint import failpoint
from millstream.pipeline import Pipeline
from millstream.relation.sinks import SinkDefinition
from millstream.runtime.checkpoint import folder_for, folder_of
from millstream.runtime.sink_dispatch import IMPATIENT, Patience, Sender
from millstream.runtime.sink_marks import sent_before
from millstream.sink import Sink, open_sink
from millstream.store import StoreWriter, Target, open_reader, open_writer
from millstream.store.contract import LETTERS_KEPT, version_of
from millstream.store.lease import Keeper
from millstream.store.versioned import NEXT, OLD, Beside
from millstream.view import View


def claim_stores(
    stack: ExitStack,
    pipeline: str,
    addresses: Collection[str],
    *,
    takeover: bool,
    beside: bool = False,
    lost: Callable[[TakenOver], None] | None = None,
    patience: Patience = IMPATIENT,
    letters: int = LETTERS_KEPT,
    check: Callable[[str, StoreWriter], None] = lambda _address, _writer: None,
) -> dict[str, tuple[StoreWriter, int]]:
    """Become the only writer of a pipeline in these stores, for as long as the stack lives; by address, with the fences.

    A server that is away is waited for. A file is here, or something is wrong that waiting does not mend. ``check`` is called with
    each store as soon as it is ours, and may refuse it.
    """
    writers: dict[str, tuple[StoreWriter, int]] = {}
    for address in sorted(addresses):
        waiting = patience if isinstance(parse_address(address), PostgresAddress) else IMPATIENT
        writer = stack.enter_context(waiting.call("views", partial(open_writer, address, letters=letters)))
        if beside:
            writer = Beside(writer)
        fence = waiting.call("views", partial(writer.claim, pipeline, takeover=takeover))
        stack.callback(writer.release)
        check(address, writer)
        stack.enter_context(Keeper(writer.renew, lost=lost))
        writers[address] = (writer, fence)
    return writers


def open_sinks(stack: ExitStack, pipeline: Pipeline, patience: Patience = IMPATIENT) -> dict[str, Sink]:
    """Open every sink of a pipeline, for as long as the stack lives."""
    sinks = {}
    for name, wanted in pipeline.sinks.items():
        key = pipeline.views[wanted.view].key
        opening = partial(open_sink, wanted, pipeline.name, key, log=pipeline.log, kafka=pipeline.kafka)
        sinks[name] = stack.enter_context(patience.call(f"sink {name}", opening))
    return sinks


def clear_sinks(
    sinks: Mapping[str, Sink],
    pipeline: Pipeline,
    epoch: int,
    folder: Path,
    patience: Patience,
    *,
    ran: bool,
    again: bool = False,
) -> None:
    """Let sinks know that what their views hold is no more; refuse if what one of them has is not known.

    What is only ever added to a sink would be there twice: that is refused unless ``again`` asks for it. ``ran`` says that the pipeline has run into its stores: a view that is not there was kept nowhere. One that has not begins, rebuilt
    or not.
    """
    stored = {name: _stored(pipeline.views[pipeline.sinks[name].view]) for name in sinks}
    for name, found in stored.items():
        view = pipeline.views[pipeline.sinks[name].view]
        if not view.key and isinstance(pipeline.sinks[name].to, str) and not again:
            _refuse_twice(pipeline.sinks[name], sinks[name], folder, patience)
        if found is None and view.key and ran:
            _refuse_unknown(pipeline.sinks[name], sinks[name], folder, patience)
    for name, found in stored.items():
        if found is not None:
            target, rows = found
            Sender(pipeline.sinks[name], target, sinks[name], epoch, folder, patience).clear(rows)


def _stored(view: View) -> tuple[Target, pa.Table] | None:
    """What its store has of a view, even one that is to be kept nowhere from now on; None if nothing."""
    with suppress(UnknownView), open_reader(view.to) as store:
        rows = store.table(view.name)
        known = {each.name: each for each in store.views()}[view.name]
        return Target(view.name, rows.schema, known.key, known.append), rows
    return None


def _has_rows(wanted: SinkDefinition, sink: Sink, folder: Path, patience: Patience) -> bool:
    """Whether a sink may have rows: it has a number, or it keeps none and an earlier run has used it."""
    last = patience.call(f"sink {wanted.name}", sink.last)
    return last is not None or (wanted.mode != "exactly_once" and sent_before(folder, wanted.name))


def _refuse_twice(wanted: SinkDefinition, sink: Sink, folder: Path, patience: Patience) -> None:
    """Refuse to send all rows of a view without a key to a sink that has them: nothing there would be replaced."""
    if _has_rows(wanted, sink, folder, patience):
        raise PipelineError(
            f"sink {wanted.name} to {wanted.where}: view {wanted.view} has no key, so all its rows would be added again to those"
            " that are there",
            hint="give the sink an empty place or another name; or ask for it: run with --rebuild --send-again",
        )


def _refuse_unknown(wanted: SinkDefinition, sink: Sink, folder: Path, patience: Patience) -> None:
    """Refuse to compute a view with a key anew for a sink that has rows of it, when nobody knows which."""
    if not _has_rows(wanted, sink, folder, patience):
        return
    raise PipelineError(
        f"sink {wanted.name} to {wanted.where}: which rows of view {wanted.view} it has is not known, because they were kept"
        " nowhere; those that it will not have again would stay",
        hint="let the sink begin anew, under another name and in an empty place; then run with --rebuild",
    )


def first_rows(wanted: SinkDefinition, view: View) -> pa.Table:
    """What a sink that is new to a pipeline that has run gets first: what its view holds, if that is kept."""
    if not view.kept:
        raise CheckpointMismatch(
            f"sink {wanted.name}: it is new, and what it has missed of view {view.name} is kept nowhere",
            hint="run with --rebuild: the views are computed anew from the log, and the sink gets all of it",
        )
    with open_reader(view.to) as store:  # hidden rows too: only people do not see them
        return store.table(view.name)


def refuse_beside(pipeline: Pipeline) -> None:
    """Refuse another version of views that sinks know and nobody keeps: the difference could not be sent."""
    for wanted in pipeline.sinks.values():
        if not pipeline.views[wanted.view].kept:
            raise PipelineError(
                f"sink {wanted.name}: view {wanted.view} is kept nowhere, so it has no versions whose difference could be sent",
                hint="`millstream run FILE --rebuild` computes it anew and sends it",
            )


def before_of(wanted: SinkDefinition, view: View, pipeline: Pipeline, writer: StoreWriter) -> pa.Table | None:
    """What the version before an exchange holds of a view, if the sink of changes had it."""
    for version in (OLD, NEXT):
        last = writer.last(pipeline.name + version)
        if last is not None and sent_before(folder_for(folder_of(pipeline), last), wanted.name):
            with suppress(UnknownView), open_reader(view.to) as store:
                return store.table(version_of(view.name, version))
    return None


def exchange(pipeline: str, writers: Mapping[str, StoreWriter], coming: str, going: str) -> None:
    """Let one version take the place of the stored one in all stores."""
    for writer in writers.values():
        writer.swap(pipeline, pipeline + coming, pipeline + going)
        failpoint("rebuild.after_swap")


def finish_exchange(pipeline: str, writers: Mapping[str, StoreWriter]) -> None:
    """Finish an exchange that was cut short between two stores: the first one has what in another is still the version beside."""
    first = next(iter(writers.values())).last(pipeline)
    for writer in writers.values():
        last = writer.last(pipeline)
        for coming, going in ((NEXT, OLD), (OLD, NEXT)):
            beside = writer.last(pipeline + coming)
            if first and last and beside and last.checkpoint != first.checkpoint == beside.checkpoint:
                writer.swap(pipeline, pipeline + coming, pipeline + going)
                break
