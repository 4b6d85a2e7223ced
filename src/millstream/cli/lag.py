"""``millstream lag``: how far each group is behind."""

from __future__ import annotations

import click

from millstream.cli.output import json_option, log_option, opened, show
from millstream.log.lag import group_lag


@click.command("lag")
@click.option("--group", help="Only this group.")
@click.option("--topic", help="Only this topic.")
@log_option
@json_option
def command(group: str | None, topic: str | None, log_url: str | None, as_json: bool) -> None:
    """Show the lag of every group, topic and partition, in records and in seconds, and what retention threatens.

    \b
    Examples:
      millstream lag
      millstream lag --group billing --json
    """
    with opened(log_url) as log:
        rows = group_lag(log, groups=[group] if group else None, topic=topic)
        columns = {
            "group": "GROUP",
            "topic": "TOPIC",
            "partition": "PARTITION",
            "committed": "COMMITTED",
            "end": "END",
            "records": "LAG",
            "seconds": "SECONDS",
            "members": "MEMBERS",
        }
        if any(row.warning for row in rows):
            columns["warning"] = "WARNING"
        show(rows, columns, as_json=as_json, empty="no group has committed anything")
