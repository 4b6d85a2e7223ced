"""``millstream run``: run a pipeline until it is stopped, or has caught up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.live import Live
from rich.table import Table

from millstream.capture.control import read_known, unread
from millstream.cli.logs import is_logging, logging_options
from millstream.cli.output import (
    Duration,
    cell,
    json_line,
    log_option,
    opened_pipeline,
    quiet_spark,
    show,
    spark_options,
    stderr,
)
from millstream.errors import MillstreamError
from millstream.json_event import parse_time
from millstream.log import open_log
from millstream.pipeline import Pipeline
from millstream.printable import printable
from millstream.relation.nodes import source_of
from millstream.shell.rejected import rejected_note

if TYPE_CHECKING:
    from millstream.runtime.batch import Bound
    from millstream.runtime.run import Progress

COLUMNS = {
    "batch": "BATCH",
    "records": "RECORDS",
    "rate": "PER SECOND",
    "lag": "LAG",
    "watermark": "WATERMARK",
    "state_rows": "STATE ROWS",
    "state_bytes": "STATE BYTES",
    "late": "LATE",
    "rejected": "REJECTED",
    "seconds": "BATCH SECONDS",
}

FORGET = "Compute the views from what is left of the log, though some of what they were made from is gone."


@click.command("run")
@click.argument("file", metavar="FILE")
@click.option("--once", is_flag=True, help="Stop when everything that is in the log has been done.")
@click.option("--close", is_flag=True, help="After that, end all time: every window closes. Later events are late.")
@click.option("--interval", type=Duration(), default="0s", help="Start batches this far apart.  [default: at once]")
@click.option(
    "--rate-limit",
    type=click.IntRange(1),
    metavar="N",
    help="Records a batch, at most; an append is never cut.  [default: 4000000]",
)
@click.option(
    "--byte-limit",
    type=click.IntRange(1),
    metavar="N",
    help="Bytes a batch, about, estimated by some of its records.  [default: 1073741824]",
)
@click.option("--no-heartbeats", is_flag=True, help="Windows close only by what comes, not by silence.")
@click.option("--takeover", is_flag=True, help="Take the pipeline from the process that runs it.")
@click.option("--rebuild", is_flag=True, help="Forget views and checkpoint and compute everything anew from the log.")
@click.option(
    "--send-again", is_flag=True, help="With --rebuild: add rows of views without a key to their sinks once more."
)
@click.option("--forget-history", is_flag=True, help=f"With --rebuild or --batch: {FORGET[0].lower()}{FORGET[1:]}")
@click.option("--batch", is_flag=True, help="Compute the views over a range of the log by one Spark job, and end.")
@click.option(
    "--from", "first", metavar="WHERE", help="With --batch: begin at a time, or at {TOPIC: {PARTITION: OFFSET}}."
)
@click.option("--until", metavar="WHERE", help="With --batch: end before a time, or before such offsets.")
@click.option(
    "--to", metavar="STORE", help="With --batch: where to put the views, instead of where the pipeline keeps them."
)
@click.option("--out", metavar="DIR", help="With --batch: put the views into a folder, as Parquet files.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a batch.")
@spark_options
@logging_options
@log_option
def command(
    file: str,
    once: bool,
    close: bool,
    interval: timedelta | str,
    rate_limit: int | None,
    byte_limit: int | None,
    no_heartbeats: bool,
    takeover: bool,
    rebuild: bool,
    send_again: bool,
    forget_history: bool,
    batch: bool,
    first: str | None,
    until: str | None,
    to: str | None,
    out: str | None,
    as_json: bool,
    master: str | None,
    conf: tuple[str, ...],
    log_url: str | None,
) -> None:
    """Run the pipeline that FILE defines and keep its views up to date.

    FILE is of Python or of SQL; FILE.py:NAME picks one of several pipelines. A restart goes on where the last run ended.
    SIGINT and SIGTERM let the batch end first.

    With --batch the views are computed once, over the whole log or a range of it, and replace what an earlier --batch made.
    Views that a stream keeps are left alone.

    \b
    Examples:
      millstream run shop.sql --once --json
      millstream run shop.py --batch --close --until 2026-02-01T00:00Z --out january
    """
    from millstream.runtime.run import run

    _refuse_mixture(click.get_current_context(), batch=batch)
    pipeline = opened_pipeline(file, log_url, master=master, conf=conf)
    if batch:
        _run_batch(pipeline, first, until, close=close, to=to, out=out, forget_history=forget_history, as_json=as_json)
        return
    with stopping() as stop, quiet_spark(pipeline), shown(pipeline, as_json, stop) as report:
        last = run(
            pipeline,
            once=once,
            close=close,
            interval=interval if isinstance(interval, timedelta) else timedelta(0),
            rate_limit=rate_limit,
            byte_limit=byte_limit,
            takeover=takeover,
            rebuild=rebuild,
            send_again=send_again,
            forget_history=forget_history,
            heartbeats=not no_heartbeats,
            progress=report,
            stop=stop,
        )
    if not (as_json or is_logging()):
        stderr().print(summary(pipeline, file, last), soft_wrap=True)


def in_snapshot(pipeline: Pipeline) -> Iterator[str]:
    """What is said of tables whose capture has not read all of their rows."""
    sources = [(name, source_of(table.node)) for name, table in pipeline.tables.items()]
    tables = {source.topic: name for name, source in sources if source.in_envelopes}
    if not tables:
        return
    with suppress(MillstreamError), open_log(pipeline.log) as log:  # a log that is away is the run's to tell
        for capture, known in read_known(log).items():
            for full in unread(known):
                if (name := tables.get(known.tables[full].topic)) is not None:
                    yield f"table {name}: capture {capture} has not read all rows of {full}; views grow until it has"


def summary(pipeline: Pipeline, file: str, last: Progress) -> str:
    """What a run has done, and how many records it did not admit."""
    done = f"{pipeline.name}: {last.records:,} records in this run; views: {', '.join(pipeline.views)}"
    note = rejected_note(last.records, asdict(last), _which(pipeline, file))
    return f"{done}\n{note}" if note else done


def _which(pipeline: Pipeline, file: str) -> str:
    """The command that shows which records were not admitted."""
    kept = next((name for name, view in pipeline.views.items() if view.kept), None)
    if kept is None:
        return "no view is kept, so they are not either"
    asked = "SELECT * FROM millstream_dead_letters ORDER BY batch DESC LIMIT 20"
    return f'`millstream views query {kept} "{asked}" --views {file}` shows the newest'


def _run_batch(
    pipeline: Pipeline,
    first: str | None,
    until: str | None,
    *,
    close: bool,
    to: str | None,
    out: str | None,
    forget_history: bool,
    as_json: bool,
) -> None:
    from millstream.runtime.batch import run_batch

    start, end = _bound("--from", first), _bound("--until", until)
    with quiet_spark(pipeline), stderr().status(f"computing the views of {pipeline.name}"):
        made = run_batch(pipeline, start=start, until=end, close=close, to=to, out=out, forget_history=forget_history)
    rows = {name: table.num_rows for name, table in made.views.items()}
    if as_json:
        facts = {"pipeline": made.pipeline, **made.counts, "seconds": made.seconds}
        click.echo(json_line({**facts, "start": made.start, "end": made.end, "views": rows}))
        return
    show(
        [{"view": name, "rows": count} for name, count in rows.items()], {"view": "VIEW", "rows": "ROWS"}, as_json=False
    )
    stderr().print(f"{pipeline.name}: {made.counts['records']:,} records in {made.seconds:,.1f} s")


def _refuse_mixture(context: click.Context, *, batch: bool) -> None:
    """Some options are of a stream only, some of a batch only."""
    others = (
        {"once", "interval", "rate_limit", "byte_limit", "no_heartbeats", "takeover", "rebuild", "send_again"}
        if batch
        else {"first", "until", "to", "out"}
    )
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is not click.core.ParameterSource.DEFAULT
        if option.name in others and given:
            raise click.UsageError(f"{option.opts[0]} {'does not go with' if batch else 'needs'} --batch")


def _bound(option: str, text: str | None) -> Bound:
    """A time, or offsets as Spark writes them."""
    if text is None or not text.lstrip().startswith("{"):
        return None if text is None else parse_time(text)
    try:
        return msgspec.json.decode(text, type=dict[str, dict[int, int]])
    except msgspec.DecodeError as error:
        raise click.UsageError(
            f'{option}: found {text!r}, expected offsets like {{"clicks": {{"0": 17}}}}: {error}'
        ) from error


@contextmanager
def stopping(*signals: int) -> Iterator[threading.Event]:
    """Turn the first SIGINT or SIGTERM, or of the signals that are named, into a wish; the second one interrupts."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in signals or (signal.SIGINT, signal.SIGTERM)}

    def wish(*_: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in before:
        signal.signal(number, wish)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def shown(pipeline: Pipeline, as_json: bool, stop: threading.Event) -> Iterator[Callable[[Progress], None]]:
    """Shows which tables are in snapshot still, then each batch. If the reader of the output has left, the run stops and the block ends with BrokenPipeError."""
    for note in in_snapshot(pipeline):
        stderr().print(note, soft_wrap=True)
    left: BrokenPipeError | None = None
    with _display(pipeline, as_json) as display:

        def show_or_stop(progress: Progress) -> None:
            nonlocal left
            try:
                display(progress)
            except BrokenPipeError as error:
                left = error
                stop.set()

        yield show_or_stop
    if left is not None:
        raise left


@contextmanager
def _display(pipeline: Pipeline, as_json: bool) -> Iterator[Callable[[Progress], None]]:
    """A JSON line a batch, a live table, or a line where no one is watching; nothing where the log says it."""
    if as_json:
        yield lambda progress: click.echo(json_line(row(progress)))
        return
    if is_logging():
        yield lambda _: None
        return
    console = stderr()
    if not console.is_terminal:
        yield lambda progress: console.print(_line(row(progress)), soft_wrap=True)
        return
    with Live(_waiting(pipeline), console=console, refresh_per_second=4, transient=False) as live:
        yield lambda progress: live.update(_table(row(progress)))


def row(progress: Progress) -> dict[str, Any]:
    """What is shown of a progress."""
    facts = asdict(progress)
    facts["rejected"] = progress.duplicate + progress.future + progress.malformed
    return facts


def _waiting(pipeline: Pipeline) -> str:
    return f"{pipeline.name}: starting Spark"


def _table(facts: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=facts["pipeline"], title_justify="left")
    table.caption, table.caption_justify = printable(facts["waiting"]) or None, "left"
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right")
    table.add_row(*(_cell(facts[name]) for name in COLUMNS))
    return table


def _line(facts: dict[str, Any]) -> str:
    if facts["waiting"]:
        return f"{facts['pipeline']}: waiting for {printable(facts['waiting'])}"
    return f"{facts['pipeline']}: " + ", ".join(
        f"{heading.lower()} {_cell(facts[name])}" for name, heading in COLUMNS.items()
    )


def _cell(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}" if hasattr(value, "strftime") else cell(value)
