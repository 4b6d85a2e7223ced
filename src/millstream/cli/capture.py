"""``millstream capture``: a database's tables into topics, and what there is to know and to do about that."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from millstream.capture.control import Control, Known, check_name, forget, read_known, request, unread
from millstream.capture.declaration import in_python, in_sql
from millstream.capture.opening import name_of, open_source
from millstream.cli.capture_diff import diff, known_capture, source_of
from millstream.cli.capture_start import start
from millstream.cli.output import (
    confirmed,
    json_option,
    log_option,
    opened,
    show,
    stderr,
    to_json,
)
from millstream.errors import CaptureError, ConfigError, MillstreamError

_STATUS = {
    "name": "CAPTURE",
    "source": "SOURCE",
    "tables": "TABLES",
    "snapshot": "SNAPSHOT",
    "changes": "CHANGES",
    "committed": "LAST COMMIT",
    "behind": "BEHIND",
    "owner": "OWNER",
}


@click.group("capture")
def command() -> None:
    """Let topics follow the tables of a database: every row, then every committed change, exactly once."""


command.add_command(start)
command.add_command(diff)


@command.command()
@click.argument("name", required=False)
@log_option
@json_option
def status(name: str | None, log_url: str | None, as_json: bool) -> None:
    """Show the captures of a log: how far each is, and whether that is where its database is.

    \b
    Examples:
      millstream capture status
      millstream capture status shop --json
    """
    with opened(log_url) as log:
        captures = {name: known_capture(log, name)} if name else read_known(log)
        rows = [_status(each, known) for each, known in captures.items()]
    show(
        rows, _STATUS, as_json=as_json, empty="no captures; `millstream capture start SOURCE --table TABLE` begins one"
    )


def _status(name: str, known: Known) -> dict[str, Any]:
    progress, owner = known.progress, known.owner
    missing = len(unread(known))
    return {
        "name": name,
        "source": progress.source if progress else None,
        "tables": ", ".join(known.tables),
        "snapshot": f"{len(known.tables) - missing} of {len(known.tables)}" if missing else "complete",
        "position": progress.position if progress else None,
        "changes": progress.changes if progress else 0,
        "committed": progress.committed if progress else None,
        "updated": progress.updated if progress else None,
        "behind": _behind(name, known),
        "owner": f"{owner.host}, {owner.pid}" if owner else None,
        "requests": known.requests,
    }


def _behind(name: str, known: Known) -> str:
    """Whether the database has more."""
    from millstream.capture.order import order_of

    if known.progress is None or known.progress.position is None:
        return "all"
    try:
        with source_of(known, name) as source:
            end, here = order_of(source.end()), order_of(known.progress.position)
    except MillstreamError as error:
        return f"unknown: {error.message}"
    if end <= here:
        return "no"
    same = end[:-1] == here[:-1]
    return f"by {end[-1] - here[-1]:,}" if same else "yes"


@command.command()
@click.argument("name")
@click.option("--table", "tables", multiple=True, required=True, metavar="TABLE", help="Which; may be repeated.")
@log_option
def snapshot(name: str, tables: tuple[str, ...], log_url: str | None) -> None:
    """Ask a capture to read all rows of a table again, while it goes on.

    Rows that the topic has and the table has not are deleted. The capture takes it up at once if it runs, else when it is started.

    \b
    Example:
      millstream capture snapshot shop --table public.users
    """
    with opened(log_url) as log:
        known = known_capture(log, name)
        if known.progress is not None and known.progress.connector == "debezium":
            raise ConfigError(
                f"capture {name}: Debezium's engine reads all rows once", hint="capture the table under another name"
            )
        for table in tables:
            if not (table in known.tables and known.tables[table].topic):
                raise ConfigError(f"capture {name}: it has no table {table}; it has {', '.join(known.tables)}")
        for table in tables:
            request(log, name, table)
    stderr().print(f"asked; `millstream capture status {name}` shows when it is done", soft_wrap=True)


@command.command()
@click.argument("source", metavar="SOURCE")
@click.option("--table", "tables", multiple=True, required=True, metavar="TABLE", help="Which; may be repeated.")
@click.option("--name", help="What the capture is or will be called.  [default: as the database]")
@json_option
def columns(source: str, tables: tuple[str, ...], name: str | None, as_json: bool) -> None:
    """Print how a pipeline declares tables of a database, in Python and in SQL.

    \b
    Example:
      millstream capture columns sqlite:shop.db --table users
    """
    named = check_name(name or name_of(source))
    database = open_source(source, tables, named)
    try:
        found = database.tables()
    finally:
        database.close()
    if as_json:
        said = [{**asdict(each), "python": in_python(named, each), "sql": in_sql(named, each)} for each in found]
        click.echo(to_json(said))
        return
    click.echo("\n\n".join(f"{in_python(named, each)}\n\n{in_sql(named, each)}" for each in found))


@command.command()
@click.argument("name")
@click.argument("statement")
@log_option
def alter(name: str, statement: str, log_url: str | None) -> None:
    """Change the schema of a SQLite file that is captured, without losing a change.

    Triggers are taken away, the statement is run and they are made again, while nobody can write. Other databases need no help.

    \b
    Example:
      millstream capture alter shop "ALTER TABLE users ADD COLUMN age INTEGER"
    """
    with opened(log_url) as log, source_of(known_capture(log, name), name) as source:
        change = getattr(source, "alter", None)
        if change is None:
            raise CaptureError(
                f"capture {name}: {source.connector} tells by itself when a table changes",
                hint="run the statement there",
            )
        change(statement)
    stderr().print("done", soft_wrap=True)


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@log_option
def remove(name: str, yes: bool, log_url: str | None) -> None:
    """End a capture for good: take out of the database what it made there, and forget the position.

    Its topics stay. Whoever still captures under this name is stopped.

    \b
    Example:
      millstream capture remove shop --yes
    """
    with opened(log_url) as log:
        known = known_capture(log, name)
        confirmed(f"End capture {name} of {len(known.tables)} tables?", yes=yes)
        Control(log, name).claim()
        with source_of(known, name) as source:
            source.remove()
        forget(log, name)
    stderr().print(f"removed {name}; `millstream topics delete TOPIC` deletes a topic", soft_wrap=True)
