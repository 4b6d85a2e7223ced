"""``millstream groups``: look at consumer groups and move them."""

from __future__ import annotations

import sys

import click

from millstream.cli.output import confirmed, json_option, log_option, opened, show, stderr, to_json
from millstream.errors import UnknownGroup
from millstream.log.lag import group_lag, parse_start, plan_reset, reset


@click.group("groups")
def command() -> None:
    """Look at consumer groups and move them."""


@command.command("list")
@log_option
@json_option
def list_(log_url: str | None, as_json: bool) -> None:
    """List the groups.

    \b
    Example:
      millstream groups list
    """
    with opened(log_url) as log:
        rows = [
            {
                "group": group.name,
                "kind": group.kind,
                "members": len(group.members),
                "topics": ", ".join(sorted({place.topic for place in group.offsets})),
            }
            for group in log.groups()
        ]
        columns = {"group": "GROUP", "kind": "KIND", "members": "MEMBERS", "topics": "TOPICS"}
        show(rows, columns, as_json=as_json, empty="no groups yet")


@command.command()
@click.argument("name")
@log_option
@json_option
def describe(name: str, log_url: str | None, as_json: bool) -> None:
    """Show a group's members and how far it is in each partition.

    \b
    Example:
      millstream groups describe billing
    """
    with opened(log_url) as log:
        group = next((group for group in log.groups() if group.name == name), None)
        if group is None:
            raise UnknownGroup(f"no group {name}", hint="`millstream groups list`")
        rows = group_lag(log, groups=[name])
        if as_json:
            members = list(group.members)
            click.echo(to_json({"group": name, "kind": group.kind, "members": members, "partitions": rows}))
            return
        stderr().print(
            f"{name}: {group.kind} group, {len(group.members)} members: {', '.join(group.members) or 'none'}"
        )
        columns = {"topic": "TOPIC", "partition": "PARTITION", "committed": "COMMITTED", "end": "END", "records": "LAG"}
        show(rows, columns, as_json=False, empty="nothing committed yet")


@command.command("reset")
@click.argument("name")
@click.option("--topic", required=True, help="In this topic.")
@click.option("--to", "where", required=True, metavar="WHERE", help="earliest, latest, an offset, a time, or 0:17,1:4.")
@click.option("--yes", is_flag=True, help="Do it; without, it is only shown.")
@log_option
@json_option
def reset_(name: str, topic: str, where: str, yes: bool, log_url: str | None, as_json: bool) -> None:
    """Move a group: first what would change is shown, then, with --yes or your word, it is done.

    \b
    Examples:
      millstream groups reset billing --topic clicks --to earliest
      millstream groups reset billing --topic clicks --to 2026-01-31T12:00:00Z --yes
    """
    with opened(log_url) as log:
        moves = plan_reset(log, name, topic, parse_start(where))
        columns = {"topic": "TOPIC", "partition": "PARTITION", "before": "BEFORE", "after": "AFTER"}
        show(moves, columns, as_json=as_json)
        if not yes and not sys.stdin.isatty():
            stderr().print("nothing was changed; add --yes to do it")
            return
        confirmed(f"Move group {name}?", yes=yes)
        reset(log, name, moves)
        stderr().print(f"moved {name}")


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@log_option
def delete(name: str, yes: bool, log_url: str | None) -> None:
    """Forget a group and its offsets.

    \b
    Example:
      millstream groups delete billing --yes
    """
    with opened(log_url) as log:
        confirmed(f"Forget group {name}?", yes=yes)
        log.delete_group(name)
        stderr().print(f"deleted {name}")
