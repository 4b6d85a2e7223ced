"""``millstream consume``: print what is in a topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from datetime import timedelta

import click

from millstream.cli.output import (
    Duration,
    json_line,
    json_option,
    log_option,
    opened,
    opened_vault,
    reveal_option,
)
from millstream.errors import GenerationFenced
from millstream.event import Record
from millstream.json_event import record_object
from millstream.log.contract import Log
from millstream.log.lag import parse_start
from millstream.printable import printable


@click.command("consume")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default=None,
    metavar="WHERE",
    help="earliest, latest, an offset, a time, or 0:17,1:4.  [default: earliest]",
)
@click.option("--group", metavar="NAME", help="Read as a member of this group, and commit what was printed.")
@click.option("--max", "limit", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more at the end, until interrupted.")
@click.option(
    "--lease",
    type=Duration(),
    default="10s",
    show_default=True,
    help="After how long a silent member of a group is dead.",
)
@reveal_option
@log_option
@json_option
def command(
    topic: str,
    start: str | None,
    group: str | None,
    limit: int | None,
    follow: bool,
    lease: timedelta,
    reveal: bool,
    log_url: str | None,
    as_json: bool,
) -> None:
    """Print the records of TOPIC: partition, offset, time, key, value; with --json one object a line.

    Tabs, newlines and what a terminal would obey are shown as escapes: a line is a record.

    Without --follow it ends at what was the end when it began. Records of those who wait to be erased are left out.

    \b
    Examples:
      millstream consume clicks --max 10
      millstream consume clicks --from 2026-01-31T12:00:00Z --follow
      millstream consume clicks --group billing --follow --json
      millstream consume orders --reveal --max 10
    """
    with opened(log_url) as log, opened_vault(reveal) as vault:
        if group:
            records = _as_member(log, topic, group, start, lease, follow, limit)
        else:
            records = _alone(log, topic, start, follow, limit)
        is_hidden = _hidden_in(log, topic)
        with closing(records):  # however it ends, leave the group before the log is closed
            for sealed in records:
                if is_hidden is not None and is_hidden(sealed.key, sealed.value):
                    continue
                record = vault.reveal_record(sealed) if vault else sealed
                click.echo(json_line(record_object(record)) if as_json else _line(record))


def _hidden_in(log: Log, topic: str) -> Callable[[bytes | None, bytes | None], bool] | None:
    """What says of a record that it is of somebody who is to be forgotten, if there is anybody."""
    from millstream.erase.request import hides

    return hides(log, topic)


def _alone(log: Log, topic: str, start: str | None, follow: bool, limit: int | None) -> Generator[Record]:
    left = float("inf") if limit is None else limit
    with log.reader(topic, parse_start(start or "earliest")) as reader:
        ends = {partition: bound.end for partition, bound in log.bounds(topic).items()}
        while left > 0 and (follow or any(position < ends.get(p, 0) for p, position in reader.positions.items())):
            for record in reader.poll(int(min(1000, left)), timeout=1.0):
                if follow or record.offset < ends.get(record.partition, 0):
                    left -= 1
                    yield record


def _as_member(
    log: Log, topic: str, group: str, start: str | None, lease: timedelta, follow: bool, limit: int | None
) -> Generator[Record]:
    if start not in (None, "earliest", "latest"):
        raise click.UsageError(
            "--group goes with --from earliest or latest; to move a group, use `millstream groups reset`"
        )
    fresh = "latest" if start == "latest" else "earliest"
    left = limit
    with log.consumer(topic, group, start=fresh, lease=lease) as consumer:  # type: ignore[arg-type]
        waited = time.monotonic() + 10.0
        while left is None or left > 0:
            records = consumer.poll(500 if left is None else min(500, left), timeout=1.0)
            yield from records
            if records:
                with suppress(GenerationFenced):  # the group changed meanwhile: what is not committed comes again
                    consumer.commit()  # after printing: at least once
                left = None if left is None else left - len(records)
            elif not follow and (consumer.assignment or time.monotonic() > waited):
                return


def _line(record: Record) -> str:
    value = "(tombstone)" if record.value is None else _shown(record.value)
    key = "-" if record.key is None else _shown(record.key)
    return f"{record.partition}\t{record.offset}\t{record.time.isoformat(timespec='milliseconds')}\t{key}\t{value}"


def _shown(data: bytes) -> str:
    """Bytes on one line, between tabs."""
    return printable(data.decode(errors="backslashreplace"))
