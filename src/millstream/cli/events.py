"""``millstream events``: the past of aggregates, as a file's event store has it."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any

import click
import msgspec

from millstream.cli.output import json_line, json_option, show, to_json
from millstream.load import load_store


@click.group("events")
def command() -> None:
    """Look at aggregates: who did what when, what has changed, and whether today's code reads it all.

    FILE is a file of Python that defines an EventStore at module level; FILE:NAME picks one of several.
    """


@command.command()
@click.argument("file", type=click.Path())
@click.argument("aggregate")
@click.option("--max", "limit", type=click.IntRange(1), help="At most so many events.  [default: all]")
@json_option
def history(file: str, aggregate: str, limit: int | None, as_json: bool) -> None:
    """Show the events of an aggregate: when each came, from which command, and from whom.

    \b
    Examples:
      millstream events history bank.py ann
      millstream events history shop.py:carts cart-7 --max 20 --json
    """
    columns = {"version": "VERSION", "time": "TIME", "event": "EVENT", "command": "COMMAND", "who": "WHO", "key": "KEY"}
    with load_store(file) as store:
        rows: list[dict[str, Any]] = []
        for each in islice(store.history(aggregate), limit):
            told: Any = msgspec.to_builtins(each.event)
            event = told if as_json else f"{type(each.event).__name__} {json_line(told)}"
            row = {"version": each.version, "time": each.time, "type": type(each.event).__name__, "event": event}
            rows.append(row | {"command": each.command, "who": each.who, "key": each.key})
    show(rows, columns, as_json=as_json, empty=f"no events of {aggregate}")


@command.command()
@click.argument("file", type=click.Path())
@click.argument("aggregate")
@click.argument("before", type=click.IntRange(0))
@click.argument("after", type=click.IntRange(0))
@json_option
def diff(file: str, aggregate: str, before: int, after: int, as_json: bool) -> None:
    """Show what differs between an aggregate's states after two of its events; 0 is before the first.

    \b
    Examples:
      millstream events diff bank.py ann 3 7
      millstream events diff bank.py ann 0 3 --json
    """
    with load_store(file) as store:
        found = store.diff(aggregate, before, after)
    rows = [
        {
            "field": path or "(all)",
            "before": one if as_json else json_line(one),
            "after": other if as_json else json_line(other),
        }
        for path, (one, other) in found.items()
    ]
    show(rows, {"field": "FIELD", "before": "BEFORE", "after": "AFTER"}, as_json=as_json, empty="no difference")


@command.command()
@click.argument("file", type=click.Path())
@json_option
def check(file: str, as_json: bool) -> None:
    """Read the whole history with the code in FILE: every event, every fold, every snapshot. Exit code 1 if something is wrong.

    Run it before code is deployed that changes events, upcasters or evolve. Nothing is written.

    \b
    Examples:
      millstream events check bank.py
      millstream events check shop.py:carts --json
    """
    with load_store(file) as store:
        found = store.check()
    if as_json:
        click.echo(to_json(asdict(found)))
    else:
        click.echo(
            f"{found.events:,} events of {found.aggregates:,} aggregates read, {found.snapshots:,} snapshots compared;"
            f" {found.found or 'no'} problem{'' if found.found == 1 else 's'}"
        )
        for problem in found.problems:
            click.echo(f"  {problem}")
        if found.found > len(found.problems):
            click.echo(f"  … and {found.found - len(found.problems):,} more")
    if found.found:
        raise click.exceptions.Exit(1)
