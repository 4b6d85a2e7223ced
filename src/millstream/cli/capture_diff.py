"""``millstream capture diff``: a database compared with its topics, and with all that a pipeline makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from millstream.capture.contract import Source
from millstream.capture.control import Known, read_known
from millstream.capture.diff import Compared, compare
from millstream.capture.opening import open_source
from millstream.cli.logs import logging_options
from millstream.cli.output import (
    json_line,
    json_option,
    log_option,
    opened,
    opened_pipeline,
    quiet_spark,
    show,
    spark_options,
    stderr,
    to_json,
)
from millstream.errors import CaptureError
from millstream.log import open_log
from millstream.log.contract import Log
from millstream.pipeline import Pipeline

_COLUMNS = {
    "table": "TABLE",
    "rows": "ROWS",
    "missing": "MISSING",
    "extra": "EXTRA",
    "other": "OTHER",
    "moving": "MOVING",
    "equal": "EQUAL",
}
_PLACES = {"kind": "WHAT", "name": "NAME", **{name: _COLUMNS[name] for name in list(_COLUMNS)[1:]}}


def known_capture(log: Log, name: str) -> Known:
    """What a log knows of a capture; CaptureError if there is none of that name."""
    captures = read_known(log)
    if name not in captures:
        raise CaptureError(
            f"capture {name}: none of that name in {log.url}; there are {', '.join(captures) or 'none'}",
            hint="`millstream capture start SOURCE --table TABLE` begins one",
        )
    return captures[name]


@contextmanager
def source_of(known: Known, name: str, allow: tuple[str, ...] = ()) -> Iterator[Source]:
    """The database that a capture reads."""
    if known.progress is None:
        raise CaptureError(f"capture {name}: it has not begun", hint="start it again")
    source = open_source(known.progress.source, list(known.tables), name, allow=allow)
    try:
        yield source
    finally:
        source.close()


@click.command()
@click.argument("what", metavar="NAME|FILE")
@spark_options
@logging_options
@log_option
@json_option
def diff(what: str, master: str | None, conf: tuple[str, ...], log_url: str | None, as_json: bool) -> int:
    """Compare the tables of a database with their topics, and with what a pipeline makes of them, while all of it moves.

    With the NAME of a capture: its tables with their topics, row by row, read at one moment; the capture must be running, or have
    caught up. With the FILE of a pipeline: the tables whose topics it reads, then its views with what the log gives, then each of its sinks with its view.
    Changes nothing. Exit code 1 if a row differs.

    \b
    Examples:
      millstream capture diff shop
      millstream capture diff shop.py --json
    """
    if what.partition(":")[0].endswith((".py", ".sql")):
        return _of_file(opened_pipeline(what, log_url, master=master, conf=conf), as_json)
    with opened(log_url) as log:
        compared = _compared(log, what)
    rows = [{**asdict(each), "equal": each.equal} for each in compared]
    if as_json:
        click.echo(to_json(rows))
    else:
        show(rows, _COLUMNS, as_json=False, empty="no tables")
        _examples(what, compared)
    return 0 if all(each.equal for each in compared) else 1


def _compared(log: Log, name: str) -> list[Compared]:
    with source_of(known_capture(log, name), name) as source, stderr().status(f"comparing {name}"):
        return list(compare(log, source, name))


def _examples(name: str, compared: Sequence[Compared]) -> None:
    for each in compared:
        for found in each.examples:
            said = f"{each.table} {found.key}: {found.kind}; database {json_line(found.database)}, topic {json_line(found.topic)}"
            stderr().print(said, soft_wrap=True)
    if not all(each.equal for each in compared):
        stderr().print(f"`millstream capture snapshot {name} --table TABLE` puts a topic right", soft_wrap=True)


def _of_file(pipeline: Pipeline, as_json: bool) -> int:
    """From the database to the last place that is derived from it."""
    from millstream.runtime.setup import chain_of
    from millstream.runtime.sink_diff import compare_sinks
    from millstream.runtime.verify import verify

    topics = {feed.source.topic for feed in chain_of(pipeline).feeds}
    rows: list[dict[str, Any]] = []
    with open_log(pipeline.log, create=False, kafka=pipeline.kafka) as log:
        for name, known in read_known(log).items():
            if topics & {each.topic for each in known.tables.values()}:
                compared = _compared(log, name)
                rows += [_row("table", each.table, each) for each in compared]
                if not as_json:
                    _examples(name, compared)
    with quiet_spark(pipeline), stderr().status(f"computing the views of {pipeline.name} from the log"):
        verified = verify(pipeline)
    rows += [_row("view", view.view, view) for view in verified.views]
    rows += [{"kind": "view", "name": name, "skipped": "it is kept nowhere"} for name in verified.skipped]
    with stderr().status(f"comparing the sinks of {pipeline.name}"):
        rows += [_row("sink", each.sink, each) for each in compare_sinks(pipeline)]
    equal = all(row.get("equal", True) for row in rows)
    if as_json:
        click.echo(to_json({"pipeline": pipeline.name, "equal": equal, "places": rows}))
        return 0 if equal else 1
    show([row for row in rows if not row.get("skipped")], _PLACES, as_json=False, empty="nothing to compare")
    for row in rows:
        for example in row.get("examples", ()) if row["kind"] != "table" else ():
            said = example if isinstance(example, str) else f"{example[0]}: {example[1]}"
            stderr().print(f"{row['name']}: {said}", soft_wrap=True)
        if row.get("skipped"):
            stderr().print(f"{row['name']}: not compared; {row['skipped']}", soft_wrap=True)
    return 0 if equal else 1


def _row(kind: str, name: str, found: Any) -> dict[str, Any]:
    row = {"kind": kind, "name": name, "other": 0, "moving": 0, **asdict(found), "equal": found.equal}
    if row.get("skipped"):
        del row["equal"]
    return row
