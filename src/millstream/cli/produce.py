"""``millstream produce``: JSON lines from stdin into a topic."""

from __future__ import annotations

import sys
import time
from typing import IO

import click
import msgspec
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from millstream.cli.output import json_option, log_option, opened, parse_time, show, stderr, to_json
from millstream.errors import BadEvent, ConfigError
from millstream.event import Event
from millstream.log.producer import Buffer, Producer


@click.command("produce")
@click.argument("topic")
@click.option("--key-field", metavar="FIELD", help="The field that is the key; events of one key keep their order.")
@click.option(
    "--time-field", metavar="FIELD", help="The field with the event's time: ISO 8601, or epoch seconds or milliseconds."
)
@click.option(
    "--format", "form", type=click.Choice(["json", "text"]), default="json", show_default=True, help="What a line is."
)
@click.option("--skip-bad", is_flag=True, help="Leave out lines that do not fit, and count them, instead of stopping.")
@click.option("--file", "source", type=click.File("rb"), default="-", help="Read from here instead of stdin.")
@log_option
@json_option
def command(
    topic: str,
    key_field: str | None,
    time_field: str | None,
    form: str,
    skip_bad: bool,
    source: IO[bytes],
    log_url: str | None,
    as_json: bool,
) -> None:
    """Append each line of stdin to TOPIC as one event; a line that is not JSON stops it, after the lines before it.

    \b
    Examples:
      millstream produce clicks --key-field user --time-field at < clicks.jsonl
      echo '{"user": 7, "page": "/"}' | millstream produce clicks
    """
    if form == "text" and (key_field or time_field):
        raise click.UsageError("--key-field and --time-field need --format json")
    begun = time.monotonic()
    skipped = number = 0
    quiet = not sys.stderr.isatty()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description} {task.completed:,.0f} events", markup=False),
        TimeElapsedColumn(),
    )
    with (
        opened(log_url, create=False) as log,
        Producer(log, topic, Buffer(capacity=50_000)) as producer,
        Progress(*columns, console=stderr(), disable=quiet, transient=True) as progress,
    ):
        task = progress.add_task(f"→ {topic}", total=None)
        for number, line in enumerate(source, 1):
            text = line.strip()
            if not text:
                continue
            try:
                event = Event(text) if form == "text" else to_event(text, key_field, time_field)
            except ConfigError as error:
                if not skip_bad:
                    producer.flush()
                    raise BadEvent(
                        f"line {number}: {error.message}; the lines before it are in the log",
                        hint="mend the line, or leave such lines out with --skip-bad",
                    ) from error
                skipped += 1
                continue
            producer.send(event)
            if number % 1000 == 0:
                progress.update(task, completed=producer.counters.sent)
        producer.flush()
    taken = time.monotonic() - begun
    sent = producer.counters.sent
    row = {"topic": topic, "records": sent, "skipped": skipped, "seconds": round(taken, 3), "rate": round(sent / taken)}
    if as_json:
        click.echo(to_json(row))
    else:
        show(
            [row],
            {"topic": "TOPIC", "records": "RECORDS", "skipped": "SKIPPED", "seconds": "SECONDS", "rate": "PER SECOND"},
            as_json=False,
        )


def to_event(line: bytes, key_field: str | None = None, time_field: str | None = None) -> Event:
    """An event for a line of JSON, which stays as it is; raises ConfigError with what was found and expected."""
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from error
    if not key_field and not time_field:
        return Event(line)
    if not isinstance(value, dict):
        raise ConfigError(f"found {type(value).__name__}, expected an object")
    key, at = None, None
    if key_field:
        if value.get(key_field) is None:
            raise ConfigError(f"no field {key_field!r} for the key")
        found = value[key_field]
        key = found.encode() if isinstance(found, str) else msgspec.json.encode(found)
    if time_field:
        if value.get(time_field) is None:
            raise ConfigError(f"no field {time_field!r} for the time")
        try:
            at = parse_time(value[time_field])
        except ConfigError as error:
            raise ConfigError(f"field {time_field!r}: {error.message}") from error
    return Event(line, key, at)
