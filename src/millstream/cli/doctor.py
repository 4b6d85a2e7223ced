"""``millstream doctor``: is everything here that Millstream needs?"""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.text import Text

from millstream.cli.output import json_option, log_option, settings, stderr, stdout, to_json


@click.command("doctor")
@click.option("--quick", is_flag=True, help="Do not start Spark.")
@click.option(
    "--views", metavar="WHERE", help="A place for views to look at: sqlite:PATH or postgresql://USER@HOST/DATABASE."
)
@log_option
@json_option
def command(quick: bool, views: str | None, log_url: str | None, as_json: bool) -> int:
    """Check Python, SQLite, Java, folders, the log, a place for views, and how long Spark takes to start.

    Exit code 1 if something is missing; each line then says what to do.

    \b
    Examples:
      millstream doctor
      millstream doctor --quick --json
      millstream doctor --log kafka://localhost:9092 --views postgresql://shop@localhost/shop
    """
    import msgspec

    from millstream.doctor import checks

    chosen = settings()
    if log_url:
        chosen = msgspec.structs.replace(chosen, log=log_url)
    found = []
    with stderr().status("looking…") as status:
        for check in checks(chosen, spark=not quick, views=views):
            found.append(check)
            status.update(f"looked at {check.name}…")
            if not as_json:
                mark = Text("ok  ", "green") if check.ok else Text("bad ", "red")
                stdout().print(mark, f"{check.name}: {check.found}", soft_wrap=True)
                if check.hint:
                    stdout().print(f"      → {check.hint}", soft_wrap=True)
    if as_json:
        click.echo(to_json([asdict(check) for check in found]))
    return 0 if all(check.ok for check in found) else 1
