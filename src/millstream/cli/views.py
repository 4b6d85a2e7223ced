"""``millstream views``: look at what pipelines keep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from millstream.cli.output import (
    json_option,
    opened_pipeline,
    opened_vault,
    quiet_spark,
    reveal_option,
    show,
    stderr,
)
from millstream.errors import UnknownView, ViewStoreUnavailable
from millstream.json_event import parse_time
from millstream.relation.sealed import sealed_columns
from millstream.store import open_reader
from millstream.store.contract import ViewInfo
from millstream.view import View

FILES = (".py", ".sql")
"""How files that define pipelines end; anything else with a colon is an address."""


def views_option(function: Any) -> Any:
    """Add ``--views``."""
    return click.option(
        "--views",
        "where",
        metavar="WHERE",
        help="Where the views are: sqlite:PATH, postgresql://USER@HOST/DATABASE, or the pipeline's FILE.  [default: every *views.db here]",
    )(function)


@click.group("views")
def command() -> None:
    """Look at the views that pipelines keep up to date."""


@command.command("list")
@views_option
@json_option
def list_views(where: str | None, as_json: bool) -> None:
    """List the views, with how many rows they have, how many their store refused, and how far they are.

    What was refused is in millstream_dead_letters, beside the view; see the query below.

    \b
    Examples:
      millstream views list
      millstream views list --views shop.py --json
      millstream views query totals "SELECT batch, detail FROM millstream_dead_letters WHERE topic = 'view totals'"
    """
    rows = []
    for address in _stores(where):
        with open_reader(address) as store:
            for view in store.views():
                facts = view._asdict()
                facts["columns"] = ", ".join(f"{name} {kind}" for name, kind in view.columns)
                rows.append({**facts, "key": ", ".join(view.key), "store": address})
    for name, each in _defined(where).items():
        if not each.kept:
            told = dict.fromkeys(ViewInfo._fields) | {"name": name, "pipeline": each.pipeline}
            said = {"columns": ", ".join(each.columns), "key": ", ".join(each.key), "store": each.where}
            rows.append(told | said)
    columns = {
        "name": "VIEW",
        "pipeline": "PIPELINE",
        "rows": "ROWS",
        "refused": "REFUSED",
        "batch": "BATCH",
        "updated": "UPDATED",
        "store": "STORE",
    }
    if not as_json:
        _narrow(rows, columns)
    show(rows, columns, as_json=as_json, empty="no views yet")


def _narrow(rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """Let a view be a line of 80 columns where it can: times to the second, and one store for all of them said once."""
    for row in rows:
        row["updated"] = row["updated"] and f"{row['updated']:%Y-%m-%d %H:%M:%S}"
    if len({row["store"] for row in rows}) == 1:
        del columns["store"]
        stderr().print(f"in {rows[0]['store']}", soft_wrap=True)


@command.command("show")
@click.argument("view")
@click.option("--max", "limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many rows.")
@click.option(
    "--as-of",
    "at",
    metavar="BATCH|TIME",
    help="As it was after that batch or at that time, computed anew from the log; --views names the pipeline's FILE.",
)
@reveal_option
@views_option
@json_option
def show_view(view: str, limit: int, at: str | None, reveal: bool, where: str | None, as_json: bool) -> None:
    """Show the rows of a view, in the order of its key.

    \b
    Examples:
      millstream views show per_minute
      millstream views show per_minute --json --max 1000
      millstream views show per_minute --views shop.py --as-of 2026-01-31T12:00:00Z
      millstream views show customers --reveal
    """
    if at is not None:
        table = _as_of(view, at, where)
    else:
        with open_reader(_holding(view, where), hides=True) as store:
            table = store.table(view, limit)
    table = table.slice(0, limit)
    with opened_vault(reveal) as vault:
        if vault:
            defined = _defined(where).get(view)
            table = vault.reveal_table(table, sealed_columns(defined.node) if defined else {}, f"view {view}")
    show(table.to_pylist(), {name: name for name in table.column_names}, as_json=as_json, empty=f"{view} is empty")


@command.command("query")
@click.argument("view")
@click.argument("sql")
@views_option
@json_option
def query(view: str, sql: str, where: str | None, as_json: bool) -> None:
    """Run a SELECT over a view and whatever else is stored beside it.

    The SQL is that of the store. In SQLite times are text in UTC, YYYY-MM-DD HH:MM:SS.

    \b
    Examples:
      millstream views query per_minute "SELECT page, sum(n) AS n FROM per_minute GROUP BY page"
      millstream views query per_minute "SELECT reason, count(*) AS n FROM millstream_dead_letters GROUP BY reason" --json
    """
    with open_reader(_holding(view, where), hides=True) as store:
        names, rows = store.query(sql)
    found = [dict(zip(names, row, strict=True)) for row in rows]
    show(found, {name: name for name in names}, as_json=as_json, empty="no rows")


def _as_of(view: str, at: str, where: str | None) -> Any:
    if where is None or not where.partition(":")[0].endswith(FILES):
        raise click.UsageError("--as-of computes the view from the log: name its definition with --views FILE")
    from millstream.runtime.time_travel import as_of

    pipeline = opened_pipeline(where, None)
    with quiet_spark(pipeline), stderr().status(f"computing {view} as of {at} from the log"):
        return as_of(pipeline, view, int(at) if at.isdigit() else parse_time(at))


def _defined(where: str | None) -> dict[str, View]:
    """The views of the pipeline's file, if one is named."""
    if where is None or (":" in where and not where.split(":")[0].endswith(FILES)):
        return {}
    return opened_pipeline(where, None).views


def _stores(where: str | None) -> Iterator[str]:
    if where is not None and ":" in where and not where.split(":")[0].endswith(FILES):
        yield where
    elif where is not None:
        yield from dict.fromkeys(view.to for view in _defined(where).values())
    else:
        found = sorted(Path().glob("*views.db"))
        if not found:
            raise ViewStoreUnavailable(
                "no *views.db in this folder", hint="name the place: --views sqlite:PATH or --views FILE"
            )
        yield from (f"sqlite:{path}" for path in found)


def _holding(view: str, where: str | None) -> str:
    """The store that has a view."""
    if defined := _defined(where).get(view):
        defined.refuse_unkept()
    known: list[str] = []
    for address in _stores(where):
        with open_reader(address) as store:
            names = [each.name for each in store.views()]
        if view in names:
            return address
        known += names
    raise UnknownView(f"no view {view}; there are {', '.join(known) or 'none'}", hint="`millstream views list`")
