"""``millstream produce``: JSON lines from stdin into a topic."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from millstream.cli.output import json_option, log_option, opened, show, stderr, to_json
from millstream.errors import BadEvent, ConfigError, LogError
from millstream.event import Event
from millstream.json_event import to_event
from millstream.log.contract import Topic
from millstream.log.heartbeat import PREFIX
from millstream.log.producer import Buffer, Producer

_COLUMNS = (
    SpinnerColumn(),
    TextColumn("{task.description} {task.completed:,.0f} events", markup=False),
    TimeElapsedColumn(),
)


@click.command("produce")
@click.argument("topic")
@click.option("--key-field", metavar="FIELD", help="The field that is the key; events of one key keep their order.")
@click.option(
    "--time-field", metavar="FIELD", help="The field with the event's time: ISO 8601, or epoch seconds or milliseconds."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "text"]),
    default="json",
    show_default=True,
    help="The format of a line.",
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
    skipped = number = sent = 0
    quiet = not sys.stderr.isatty()
    with ExitStack() as stack:
        log = stack.enter_context(opened(log_url, create=False))
        wanted = log.topic(topic)
        producer = stack.enter_context(_counted(Producer(log, topic, Buffer(capacity=50_000))))
        progress = stack.enter_context(Progress(*_COLUMNS, console=stderr(), disable=quiet, transient=True))
        task = progress.add_task(f"→ {topic}", total=None)
        for number, line in enumerate(source, 1):
            text = line.strip()
            if not text:
                continue
            try:
                event = Event(text) if form == "text" else to_event(text, key_field, time_field)
                _check(wanted, event)
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
        sent = producer.counters.sent
    taken = time.monotonic() - begun
    row = {"topic": topic, "records": sent, "skipped": skipped, "seconds": round(taken, 3), "rate": round(sent / taken)}
    _print(row, as_json)


def _print(row: dict[str, object], as_json: bool) -> None:
    if as_json:
        click.echo(to_json(row))
    else:
        show(
            [row],
            {"topic": "TOPIC", "records": "RECORDS", "skipped": "SKIPPED", "seconds": "SECONDS", "rate": "PER SECOND"},
            as_json=False,
        )


@contextmanager
def _counted(producer: Producer) -> Iterator[Producer]:
    """The producer, closed at the end; when it ends before that, what is in the log is counted first."""
    try:
        with producer:
            yield producer
    except (LogError, KeyboardInterrupt):
        counters = producer.counters
        stderr().print(f"{counters.sent:,} of {counters.accepted:,} events that were read are in the log")
        raise


def _check(topic: Topic, event: Event) -> None:
    """Refuse now what the log would refuse later, when nobody knows any more which line it was."""
    size, limit = len(event.value or b"") + len(event.key or b""), topic.settings.max_record_bytes
    if size > limit:
        raise ConfigError(f"{size:,} bytes, topic {topic.name} takes up to {limit:,}")
    if event.key is None and topic.settings.compacts:
        raise ConfigError(f"no key, and topic {topic.name} is compacted by key")
    if event.key is not None and event.key.startswith(PREFIX):
        raise ConfigError(f"keys that begin with {PREFIX.decode()} are reserved for heartbeats")
