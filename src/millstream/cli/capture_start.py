"""``millstream capture start``: capture until it is stopped, or has caught up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from millstream.capture.control import check_name
from millstream.capture.definition import CaptureDefinition
from millstream.capture.loop import HELD_SINCE_EVER, Report, Settings, capture
from millstream.capture.opening import EXPECTED, absolute, is_address, name_of, open_source
from millstream.capture.outbox import Outbox
from millstream.capture.transacting import TRUNCATE
from millstream.cli.logs import logging_options
from millstream.cli.output import json_line, log_option, opened, opened_pipeline, stderr
from millstream.cli.run import stopping
from millstream.errors import ConfigError
from millstream.json_event import parse_time
from millstream.secret import redacted

_BAR = (
    SpinnerColumn(),
    TextColumn("{task.description} {task.completed:,.0f}", markup=False),
    BarColumn(),
    TimeElapsedColumn(),
)


@click.command()
@click.argument("source", metavar="SOURCE")
@click.option("--table", "tables", multiple=True, metavar="TABLE", help="A table to capture; may be repeated.")
@click.option("--name", help="What the capture is called, and its topics begin with.  [default: as the database]")
@click.option("--once", is_flag=True, help="Stop when everything that is committed now is in the log.")
@click.option("--since", metavar="TIME", help="Since when rows of a snapshot hold, for as-of joins.  [default: ever]")
@click.option("--partitions", "-p", type=click.IntRange(1), default=1, show_default=True, help="Of new topics.")
@click.option(
    "--refused",
    type=click.Choice(["stop", "dead_letter"]),
    default="stop",
    show_default=True,
    help="What to do with a row that a topic does not take.",
)
@click.option(
    "--on-change",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="What to do when a table loses a column or one has another type.",
)
@click.option(
    "--truncate",
    type=click.IntRange(1),
    default=TRUNCATE,
    show_default=True,
    metavar="N",
    help="How many rows may be deleted at once where a table is emptied; they are held in memory.",
)
@click.option("--allow", multiple=True, metavar="WHAT", help="What else the database may do; see its page.")
@click.option("--outbox", metavar="TABLE", help="A table whose inserts are events for other topics.")
@click.option("--outbox-topics", multiple=True, metavar="PATTERN", help="Topics that the outbox may name: 'orders.*'.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each step.")
@logging_options
@log_option
def start(
    source: str,
    tables: tuple[str, ...],
    name: str | None,
    once: bool,
    since: str | None,
    partitions: int,
    refused: Any,
    on_change: Any,
    truncate: int,
    allow: tuple[str, ...],
    outbox: str | None,
    outbox_topics: tuple[str, ...],
    as_json: bool,
    log_url: str | None,
) -> None:
    """Capture tables until it is stopped, or has caught up.

    SOURCE is a FILE whose pipeline says what to capture, or postgresql://USER@HOST/DATABASE, mysql://…, mariadb://…, sqlite:PATH or debezium:FILE.properties, passwords by reference as ${env:NAME}. The rows that are there go to
    topics NAME.SCHEMA.TABLE first, then every committed change. A restart goes on where the log says; a table that is new in the list is read then.

    \b
    Examples:
      millstream capture start sqlite:shop.db --table users --table orders
      millstream capture start postgresql://me@db/shop --table public.users --name shop --once --json
    """
    if outbox_topics and not outbox:
        raise click.UsageError("--outbox-topics goes with --outbox TABLE")
    if is_address(source):
        routed = Outbox(outbox, outbox_topics) if outbox else None
        named = check_name(name or name_of(source))
        found = CaptureDefinition(named, source, tables, partitions, refused, on_change, allow, routed, truncate)
    else:
        found, log_url = _of_file(source, name, log_url)
    time = parse_time(since) if since else HELD_SINCE_EVER
    _capture(found, log_url, time, once=once, as_json=as_json)


def _of_file(file: str, name: str | None, log_url: str | None) -> tuple[CaptureDefinition, str]:
    """What the pipeline of a file says of its capture, and its log."""
    if not file.partition(":")[0].endswith((".py", ".sql")):
        raise ConfigError(f"capture: found {redacted(file)!r}, expected {EXPECTED}, or a FILE of a pipeline")
    pipeline = opened_pipeline(file, log_url)
    captures = pipeline.captures
    if name is None and len(captures) != 1:
        raise ConfigError(
            f"{file}: expected one capture; found {', '.join(captures) or 'none'}",
            hint="say which: --name NAME"
            if captures
            else 'define one: shop.capture("shop", "sqlite:shop.db", ["users"])',
        )
    if name is not None and name not in captures:
        raise ConfigError(f"{file}: no capture {name}; there are {', '.join(captures) or 'none'}")
    return captures[name or next(iter(captures))], pipeline.log


def _capture(found: CaptureDefinition, log_url: str | None, since: datetime, *, once: bool, as_json: bool) -> None:
    outbox = found.outbox.table if found.outbox else None
    wanted = [*found.tables, *([outbox] if outbox and outbox not in found.tables else [])]
    chosen = Settings(
        found.name,
        absolute(found.source),
        since=since,
        partitions=found.partitions,
        refused=found.refused,
        on_change=found.on_change,
        outbox=found.outbox,
        truncate=found.truncate,
    )
    database = open_source(found.source, wanted, found.name, allow=found.allow)
    try:
        with opened(log_url, create=True) as log, stopping() as stop, _shown(found.name, as_json) as report:
            done = capture(log, database, chosen, once=once, stop=stop, report=report)
    finally:
        database.close()
    if as_json:
        click.echo(json_line({"capture": found.name, **asdict(done)}))
    else:
        stderr().print(f"{found.name}: {done.rows:,} rows and {done.changes:,} changes in this run", soft_wrap=True)


@contextmanager
def _shown(name: str, as_json: bool) -> Iterator[Any]:
    """Shows where it is: JSON lines, or a bar for each table and a count of changes."""
    if as_json:
        yield lambda report: click.echo(json_line({"capture": name, **asdict(report)}))
        return
    console = stderr()
    with Progress(*_BAR, console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def said(report: Report) -> None:
            what = report.table or "changes"
            if what not in tasks:
                tasks[what] = bars.add_task(f"{name} {what}", total=report.total)
            bars.update(tasks[what], completed=report.read if report.table else report.changes)

        yield said
