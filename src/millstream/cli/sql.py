"""``millstream sql``: a shell for SQL over the log."""

from __future__ import annotations

import copy
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.output import (
    cell,
    complain,
    json_line,
    log_option,
    opened_pipeline,
    quiet_spark,
    show,
    spark_options,
    stderr,
)
from millstream.cli.run import stopping
from millstream.errors import MillstreamError
from millstream.printable import printable

if TYPE_CHECKING:
    from millstream.shell.query import Query, Signed
    from millstream.shell.session import Session


@click.command("sql")
@click.argument("file", metavar="[FILE]", required=False)
@click.option("-c", "texts", metavar="SQL", multiple=True, help="Run these statements and end; may be repeated.")
@click.option(
    "--max", "limit", type=click.IntRange(1), default=100, show_default=True, help="Show so many rows at a time."
)
@click.option("--spark", is_flag=True, help="Run every query on Spark, also those that do not need it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@spark_options
@log_option
def command(
    file: str | None,
    texts: tuple[str, ...],
    limit: int,
    spark: bool,
    as_json: bool,
    master: str | None,
    conf: tuple[str, ...],
    log_url: str | None,
) -> None:
    """Ask the log questions in SQL, and follow the answers as it grows.

    FILE, of SQL or Python, defines what there is; more can be defined in the shell. A SELECT is answered over the log so far; with
    EMIT CHANGES or EMIT FINAL it goes on with every change until Ctrl-C. Nothing is kept, and nothing is appended to the log.
    Without a terminal, statements are read from the input.

    \b
    Examples:
      millstream sql shop.sql
      millstream sql shop.sql -c "SELECT page, count(*) AS n FROM clicks GROUP BY page" --json
      millstream sql --log sqlite:shop.db < questions.sql
    """
    from millstream.shell.session import Session

    pipeline = opened_pipeline(file, log_url, master=master, conf=conf)
    screen = _Screen(as_json, limit)
    with tempfile.TemporaryDirectory(prefix="millstream-sql-") as folder:
        quiet = copy.copy(pipeline)
        quiet.checkpoint = str(Path(folder) / "shell")
        with quiet_spark(quiet):
            given = log_url or (click.get_current_context().find_root().obj or {}).get("log")
            session = Session(
                pipeline, limit=limit, log=given, spark=spark, starting=lambda: stderr().status("starting Spark")
            )
            if texts or not sys.stdin.isatty():
                fine = screen.run(session, "\n;\n".join(texts) or sys.stdin.read())
                click.get_current_context().exit(0 if fine else 1)
            _talk(session, screen)


def _talk(session: Session, screen: _Screen) -> None:
    """Read and do, until there is no more. SIGTERM ends it, SIGINT only what is being done."""
    from millstream.shell.prompt import Prompt

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    prompt = Prompt(session)
    stderr().print(f"Millstream over {session.pipeline.log}; help, exit", highlight=False, soft_wrap=True)
    while not screen.ended:
        try:
            text = prompt.read()
            if text.strip() == "\\json":
                screen.as_json = not screen.as_json
            elif text.lstrip().startswith("\\"):
                stderr().print(
                    f"no such command {text.strip()}; there are help, exit, \\json; SHOW TABLES; DESCRIBE name;"
                )
            else:
                screen.run(session, text)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


class _Screen:
    """Shows what statements give: tables for people, JSON for programs."""

    def __init__(self, as_json: bool, limit: int) -> None:
        self.as_json, self.limit, self.ended = as_json, limit, False

    def run(self, session: Session, text: str) -> bool:
        """Do all statements of a text, also after one that failed; whether none did."""
        from millstream.sql.script import cut

        try:
            statements = cut(text)
        except MillstreamError as error:
            complain(error)
            return False
        fine = True
        for statement in statements:
            if statement.text.lower() in ("exit", "quit"):
                self.ended = True
                break
            try:
                self._show(session.execute(statement))
            except MillstreamError as error:
                complain(error)
                fine = False
        return fine

    def _show(self, result: Any) -> None:
        from millstream.shell.query import Query
        from millstream.shell.session import Rows

        if isinstance(result, Query):
            self._follow(result)
        elif isinstance(result, Rows):
            show(result.rows, {name: name for name in result.columns}, as_json=self.as_json, empty="no rows")
            if result.left_out:
                self._note(f"and {result.left_out:,} more rows; --max shows more at a time")
            if result.note:
                self._note(result.note)
        elif result.done:
            self._note(result.text)
        else:
            click.echo(printable(result.text, lines=True))

    def _note(self, text: str) -> None:
        stderr().print(text, highlight=False, soft_wrap=True)

    def _follow(self, query: Query) -> None:
        told = self._json if self.as_json else _lines(query.view.columns, self.limit, self._note)
        with stopping(signal.SIGINT) as stop:
            query.follow(told, stop)
        if note := query.rejected.note():
            self._note(note)

    def _json(self, changes: Sequence[Signed]) -> None:
        for sign, row in changes:
            click.echo(json_line({"change": sign, "row": row}))


def _lines(columns: Sequence[str], limit: int, note: Callable[[str], None]) -> Callable[[Sequence[Signed]], None]:
    """Prints changes for people: a line each, in columns as wide as the widest value so far."""
    widths = [len(name) for name in columns]
    begun = False

    def line(sign: str, cells: Iterable[str]) -> str:
        return f"{sign} " + "  ".join(text.ljust(width) for text, width in zip(cells, widths, strict=True)).rstrip()

    def told(changes: Sequence[Signed]) -> None:
        nonlocal begun
        shown = [(sign, [cell(row.get(name)) for name in columns]) for sign, row in changes[:limit]]
        for _, cells in shown:
            widths[:] = [max(width, len(text)) for text, width in zip(cells, widths, strict=True)]
        if not begun and shown:
            begun = True
            click.echo(line(" ", columns))
        for sign, cells in shown:
            click.echo(line(sign, cells))
        if len(shown) < len(changes):
            note(f"  and {len(changes) - len(shown):,} more changes")

    return told
