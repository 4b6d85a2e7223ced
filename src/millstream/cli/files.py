"""``millstream files``: the folders that sinks write."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from millstream.cli.output import Duration, json_option, show


@click.group("files")
def command() -> None:
    """Look after the folders of sinks files:FOLDER."""


@command.command("compact")
@click.argument("folder", type=click.Path())
@click.option(
    "--key", metavar="NAMES", help="The key of the view by comma, if the entries of the folder do not say it."
)
@click.option(
    "--keep",
    type=Duration(),
    default="1h",
    show_default=True,
    help="How long replaced files stay, for readers that still have them open.",
)
@json_option
def compact(folder: str, key: str | None, keep: timedelta, as_json: bool) -> None:
    """Put what is left of all batches into one Parquet file: of a view with a key, the newest row of each.

    The pipeline may run meanwhile. Files that were replaced are removed by a later call, when they have not counted for --keep.

    \b
    Examples:
      millstream files compact lake
      millstream files compact lake --keep 0s --json
    """
    from millstream.sink.compact import compact_files

    names = None if key is None else [name.strip() for name in key.split(",") if name.strip()]
    made = compact_files(folder, key=names, keep=keep)
    columns = {
        "batches": "BATCHES",
        "files": "FILES",
        "rows": "ROWS",
        "left_files": "LEFT FILES",
        "left_rows": "LEFT ROWS",
        "removed": "REMOVED",
    }
    rows: list[dict[str, Any]] = [made._asdict()]
    show(rows, columns, as_json=as_json)
