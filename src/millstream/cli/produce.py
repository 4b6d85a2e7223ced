"""``millstream produce``: JSON lines from stdin into a topic."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import IO, TYPE_CHECKING

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from millstream.cli.output import json_option, log_option, opened, settings, show, stderr, to_json
from millstream.errors import BadEvent, ConfigError, LogError
from millstream.event import Event
from millstream.json_event import to_event
from millstream.log.contract import Topic
from millstream.log.embedded.batch import RESERVED
from millstream.log.producer import Buffer, Producer
from millstream.vault.pseudonym import SUFFIX

if TYPE_CHECKING:
    from millstream.vault.topic import TopicSeal

_COLUMNS = (
    SpinnerColumn(),
    TextColumn("{task.description} {task.completed:,.0f} events", markup=False),
    TimeElapsedColumn(),
)

_AT_ONCE = 1_000


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
@click.option(
    "--seal/--no-seal",
    default=None,
    help="Seal personal fields, as [vault.topics] of the settings says.  [default: where it names TOPIC]",
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
    seal: bool | None,
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
      millstream produce orders --seal --key-field user_id < orders.jsonl
    """
    if form == "text" and (key_field or time_field):
        raise click.UsageError("--key-field and --time-field need --format json")
    begun = time.monotonic()
    skipped = number = sent = 0
    quiet = not sys.stderr.isatty()
    with ExitStack() as stack:
        sealing = _sealing(stack, topic, seal, form)
        hidden = _hidden(sealing, key_field, time_field) if sealing else None
        log = stack.enter_context(opened(log_url, create=False))
        wanted = log.topic(topic)
        producer = stack.enter_context(_counted(Producer(log, topic, Buffer(capacity=50_000))))
        progress = stack.enter_context(Progress(*_COLUMNS, console=stderr(), disable=quiet, transient=True))
        task = progress.add_task(f"→ {topic}", total=None)
        for number, line in enumerate(_ahead(source, sealing), 1):
            text = line.strip()
            if not text:
                continue
            try:
                if sealing and hidden:
                    event = to_event(sealing.line(text), hidden, time_field)
                else:
                    event = Event(text) if form == "text" else to_event(text, key_field, time_field)
                    event = sealing(event) if sealing else event
                _check(wanted, event)
            except (ConfigError, BadEvent) as error:
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


def _sealing(stack: ExitStack, topic: str, wanted: bool | None, form: str) -> TopicSeal | None:
    """What seals the lines for a topic; without a word for or against it, what the settings say of the topic."""
    said = settings().vault
    if wanted is False or (wanted is None and topic not in said.topics):
        return None
    if topic not in said.topics:
        raise ConfigError(
            f"--seal: the settings do not say what is personal in topic {topic}",
            hint=f'[vault.topics.{topic}] with subject = {{user = "user_id"}} and personal = ["email"] in millstream.toml',
        )
    if form != "json":
        raise click.UsageError(f"topic {topic} is sealed field by field, which needs --format json")
    from millstream.vault.vault import Vault

    return stack.enter_context(Vault.of(said)).topic(topic)


def _ahead(source: IO[bytes], sealing: TopicSeal | None) -> Iterable[bytes]:
    """The lines; of a file that is there as a whole so many at a time that their keys are made in one commit."""
    if sealing is None or not _is_file(source):
        yield from source
        return
    while lines := list(islice(source, _AT_ONCE)):
        sealing.prepare(lines)
        yield from lines


def _is_file(source: IO[bytes]) -> bool:
    try:
        return stat.S_ISREG(os.fstat(source.fileno()).st_mode)
    except OSError:
        return False


def _hidden(sealing: TopicSeal, key: str | None, time: str | None) -> str | None:
    """The field that a record's key is made of in place of a personal one."""
    if time in sealing.said.personal:
        raise ConfigError(
            f"--time-field: {time} is personal, and a record's time is not sealed", hint="name another field"
        )
    if key is None or key not in sealing.said.personal:
        return None
    if key not in sealing.said.domains:
        raise ConfigError(
            f"--key-field: {key} is personal and has no pseudonym, so nothing of it can be a key",
            hint=f'pseudonyms = ["{key}"] in [vault.topics.{sealing.said.topic}], or another field',
        )
    return f"{key}{SUFFIX}"


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
    for prefix, whose in RESERVED.items():
        if event.key is not None and event.key.startswith(prefix):
            raise ConfigError(f"keys that begin with {prefix.decode()} are reserved for {whose}")
