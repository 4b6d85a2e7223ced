"""``millstream plan``: what a changed definition would do to what runs."""

from __future__ import annotations

from dataclasses import asdict

import click

from millstream.cli.output import json_option, log_option, opened_pipeline, show, stderr, to_json


@click.command("plan")
@click.argument("file", metavar="FILE")
@log_option
@json_option
def command(file: str, log_url: str | None, as_json: bool) -> None:
    """Say what FILE would change against what its last run left: views, state, and how much of the log that needs.

    Changes nothing, and needs no Spark.

    \b
    Examples:
      millstream plan shop.py
      millstream plan shop.py --json
    """
    from millstream.runtime.diff import change_of

    pipeline = opened_pipeline(file, log_url)
    change = change_of(pipeline)
    if as_json:
        click.echo(to_json({**asdict(change), "rebuild": change.rebuild}))
        return
    show(
        [{"view": name, "fate": fate} for name, fate in change.views.items()],
        {"view": "VIEW", "fate": ""},
        as_json=False,
    )
    for name in change.nowhere:
        stderr().print(f"view {name} is kept nowhere: only its changes go to its sinks", highlight=False)
    for title, kernels in (("state that stays valid", change.kept), ("state to be computed", change.made)):
        for kernel in kernels:
            stderr().print(f"{title}: {kernel}", soft_wrap=True, highlight=False)
    stderr().print(_verdict(change.began, change.rebuild, change.records, file), soft_wrap=True, highlight=False)
    for gap in change.gaps:
        stderr().print(
            f"topic {gap.topic} partition {gap.partition}: offsets {gap.first} to {gap.end - 1} are gone; a rebuild would do"
            " without them",
            soft_wrap=True,
            highlight=False,
        )


def _verdict(began: bool, rebuild: bool, records: int, file: str) -> str:
    if not began:
        return f"it has not run yet: `millstream run {file}` reads {records:,} records"
    if not rebuild:
        return f"nothing changes: `millstream run {file}` goes on"
    return f"`millstream run {file} --rebuild` computes all views anew from {records:,} records; without it a run is refused"
