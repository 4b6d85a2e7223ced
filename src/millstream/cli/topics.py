"""``millstream topics``: make, look at, change and clean topics."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import click

from millstream.cli.output import (
    Duration,
    F,
    cell,
    confirmed,
    json_option,
    log_option,
    opened,
    settings,
    show,
    stderr,
    to_json,
)
from millstream.errors import ConfigError
from millstream.event import TopicPartition
from millstream.log.archive import Archive
from millstream.log.contract import Log, Topic, TopicSettings
from millstream.log.lag import stored

_COLUMNS = {
    "name": "TOPIC",
    "partitions": "PARTITIONS",
    "records": "OFFSETS",
    "cleanup": "CLEANUP",
    "retention": "RETENTION",
    "groups": "GROUPS",
    "lag": "LAG",
}


@click.group("topics")
def command() -> None:
    """Make, look at, change and clean topics."""


def _settings_options(function: F) -> F:
    for option in reversed(
        (
            click.option(
                "--cleanup",
                type=click.Choice(["delete", "compact", "compact,delete"]),
                help="Delete by age and size, keep the latest of each key, or both.",
            ),
            click.option(
                "--retention", type=Duration(), help="Delete records older than this, e.g. 7d; none keeps them."
            ),
            click.option(
                "--retention-bytes", type=int, help="Delete the oldest beyond this size of a partition; 0: no limit."
            ),
            click.option("--tombstone-retention", type=Duration(), help="How long a compacted topic keeps deletes."),
            click.option("--compaction-lag", type=Duration(), help="Leave records younger than this alone."),
            click.option("--max-record-bytes", type=int, help="Refuse larger records.  [new topics: 1000000]"),
            click.option(
                "--archive", help="A folder that takes expired records as Parquet (embedded log); none: no archive."
            ),
            click.option(
                "--indexed/--no-indexed", default=None, help="Find the records of one key at once (embedded log)."
            ),
        )
    ):
        function = option(function)
    return function


def _changed(before: TopicSettings, given: dict[str, Any]) -> TopicSettings:
    changes = {name: value for name, value in given.items() if value is not None}
    for name, value in changes.items():
        if value == "none" or (name == "retention_bytes" and value == 0):
            if name in ("tombstone_retention", "compaction_lag"):
                raise ConfigError(f"{name}: none is not a duration here", hint="write 0s")
            changes[name] = None
    return replace(before, **changes)


@command.command()
@click.argument("name")
@click.option("--partitions", "-p", type=int, default=1, show_default=True, help="How many; keys are spread over them.")
@_settings_options
@log_option
@json_option
def create(name: str, partitions: int, log_url: str | None, as_json: bool, **given: Any) -> None:
    """Make a topic.

    \b
    Examples:
      millstream topics create clicks --partitions 4 --retention 7d
      millstream topics create users --cleanup compact
    """
    with opened(log_url, create=True) as log:
        _describe(log, log.create_topic(name, partitions, _changed(TopicSettings(), given)), as_json)


@command.command("list")
@log_option
@json_option
def list_(log_url: str | None, as_json: bool) -> None:
    """List topics, with the groups that read them and the furthest behind of these.

    \b
    Example:
      millstream topics list --json
    """
    with opened(log_url) as log:
        groups = log.groups()
        rows = []
        for topic in log.topics():
            bounds = log.bounds(topic.name)
            readers = [g for g in groups if any(place.topic == topic.name for place in g.offsets)]
            lags = [
                sum(b.end - g.offsets.get(TopicPartition(topic.name, p), b.start) for p, b in bounds.items())
                for g in readers
            ]
            rows.append(
                asdict(topic.settings)
                | {
                    "name": topic.name,
                    "partitions": topic.partitions,
                    "records": stored(log, topic),
                    "groups": len(lags),
                    "lag": max(lags, default=0),
                }
            )
        show(rows, _COLUMNS, as_json=as_json, empty="no topics; `millstream topics create NAME` makes one")


@command.command()
@click.argument("name")
@log_option
@json_option
def describe(name: str, log_url: str | None, as_json: bool) -> None:
    """Show a topic: settings, and what each partition holds.

    \b
    Example:
      millstream topics describe clicks
    """
    with opened(log_url) as log:
        _describe(log, log.topic(name), as_json)


def _describe(log: Log, topic: Topic, as_json: bool) -> None:
    bounds = log.bounds(topic.name)
    partitions = [{"partition": p, "start": b.start, "end": b.end} for p, b in sorted(bounds.items())]
    if as_json:
        click.echo(to_json({"name": topic.name, "settings": asdict(topic.settings), "partitions": partitions}))
        return
    chosen = (
        f"{name.replace('_', ' ')} {cell(value)}" for name, value in asdict(topic.settings).items() if value is not None
    )
    stderr().print(f"{topic.name}: {', '.join(chosen)}", soft_wrap=True)
    show(partitions, {"partition": "PARTITION", "start": "START", "end": "END"}, as_json=False)


@command.command()
@click.argument("name")
@click.option("--partitions", "-p", type=int, help="More of them; keys move, so order per key holds only from then on.")
@_settings_options
@log_option
@json_option
def alter(name: str, partitions: int | None, log_url: str | None, as_json: bool, **given: Any) -> None:
    """Change settings or add partitions; what is not named stays.

    \b
    Examples:
      millstream topics alter clicks --retention 30d
      millstream topics alter clicks --partitions 8
    """
    with opened(log_url) as log:
        changed = _changed(log.topic(name).settings, given)
        _describe(log, log.alter_topic(name, partitions=partitions, settings=changed), as_json)


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@log_option
def delete(name: str, yes: bool, log_url: str | None) -> None:
    """Delete a topic, its records and the offsets of its groups.

    \b
    Example:
      millstream topics delete clicks --yes
    """
    with opened(log_url) as log:
        held = sum(bound.end - bound.start for bound in log.bounds(name).values())
        confirmed(f"Delete topic {name} with {held:,} offsets?", yes=yes)
        log.delete_topic(name)
        stderr().print(f"deleted {name}")


@command.command()
@click.argument("name")
@log_option
@json_option
def compact(name: str, log_url: str | None, as_json: bool) -> None:
    """Apply retention and compaction now.

    On Kafka the brokers do that in their own time, and this changes nothing.

    \b
    Example:
      millstream topics compact users
    """
    with opened(log_url) as log:
        done = log.maintain(name)
        row = {"topic": name, **done._asdict()}
        if as_json:
            click.echo(to_json(row))
        elif not log.capabilities.maintains:
            stderr().print("Kafka's brokers clean by themselves; nothing to do here")
        else:
            show([row], {"topic": "TOPIC", "expired": "EXPIRED", "compacted": "COMPACTED"}, as_json=False)


@command.command()
@click.argument("name")
@click.option(
    "--to", metavar="DIR", help="The archive's folder.  [default: the topic's setting, else `archive` in the settings]"
)
@log_option
@json_option
def archive(name: str, to: str | None, log_url: str | None, as_json: bool) -> None:
    """Copy what is not archived yet to Parquet files, which Spark reads as one relation with the log.

    \b
    Example:
      millstream topics archive clicks --to archive
    """
    with opened(log_url) as log:
        own = log.topic(name).settings.archive
        folder = to or (str(log.archive_path(own)) if own else settings().archive)
        taken = Archive(folder, name).take(log)
        row = {"topic": name, "archive": folder, "records": taken}
        if as_json:
            click.echo(to_json(row))
        else:
            show([row], {"topic": "TOPIC", "archive": "ARCHIVE", "records": "RECORDS"}, as_json=False)
