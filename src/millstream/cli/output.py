"""How commands print: tables for people, JSON for programs, never both; colours only where they are wanted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
import msgspec
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from millstream import config
from millstream.address import parse_log
from millstream.errors import ConfigError, MillstreamError
from millstream.log import Log, open_log
from millstream.printable import printable, printable_json
from millstream.secret import check_setting

if TYPE_CHECKING:
    from millstream.pipeline import Pipeline
    from millstream.vault.vault import Vault

F = TypeVar("F", bound=Callable[..., Any])
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Screen(Console):
    """A console to which text is text: rich reads no markup in it, and a terminal has nothing in it to obey.

    What is to be styled is a :class:`~rich.text.Text`, made of printable text.
    """

    def __init__(self, file: TextIO) -> None:
        super().__init__(file=file, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Rich asks here for whatever it is given as text: lines, cells, headings, titles."""
        return super().render_str(printable(text, lines=True), **options)

    def status(self, status: Any, **options: Any) -> Status:
        """A spinner beside a text, in which rich would read markup whatever the console."""
        return super().status(Text(printable(str(status))), **options)

    def on_broken_pipe(self) -> None:
        """Whoever read us has left: rich would end the process here; ours ends at the edge, in good order."""
        raise


def stdout() -> Screen:
    """The console for results; ``NO_COLOR`` and pipes turn colours off."""
    return Screen(sys.stdout)


def stderr() -> Screen:
    """The console for everything else."""
    return Screen(sys.stderr)


def complain(error: MillstreamError) -> None:
    """Say what went wrong, and what to do about it."""
    console = stderr()
    console.print(Text.assemble(("error:", "bold red"), " ", error.message), soft_wrap=True)
    if error.hint:
        console.print(Text.assemble((" hint:", "bold"), " ", error.hint), soft_wrap=True)


def json_option(function: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(function)


def reveal_option(function: F) -> F:
    """Add ``--reveal``."""
    text = "Show what is sealed, with the vault of the settings; `erased` where a subject's key was deleted."
    return click.option("--reveal", is_flag=True, help=text)(function)


def log_option(function: F) -> F:
    """Add ``--log``; it may also stand before the command."""
    option = click.option("--log", "log_url", metavar="URL", help="The log: sqlite:PATH or kafka://HOST:PORT.")
    debug = click.option("--debug", is_flag=True, expose_value=False, help="Show the stack of an error.")
    return option(debug(function))


def spark_options(function: F) -> F:
    """Add ``--master`` and ``--conf``."""
    master = click.option("--master", metavar="URL", help="Spark's master.  [default: this machine]")
    conf = click.option("--conf", metavar="NAME=VALUE", multiple=True, help="A setting of Spark; may be repeated.")
    return master(conf(function))


def settings() -> config.Settings:
    """File < environment < flags before the command."""
    given = click.get_current_context().find_root().obj or {}
    loaded = config.load(Path(given["config"]) if given.get("config") else None)
    return msgspec.structs.replace(loaded, log=given["log"]) if given.get("log") else loaded


def opened(log_url: str | None, *, create: bool = False) -> Log:
    """The log that flags and settings name. Only commands that write make a missing embedded one."""
    chosen = settings()
    return open_log(log_url or chosen.log, create=create, kafka=chosen.kafka)


@contextmanager
def opened_vault(wanted: bool) -> Iterator[Vault | None]:
    """The vault that the settings name, if it is wanted."""
    if not wanted:
        yield None
        return
    from millstream.vault.vault import Vault

    with Vault.of(settings().vault) as vault:
        yield vault


def opened_pipeline(
    file: str | None, log_url: str | None, *, master: str | None = None, conf: Sequence[str] = ()
) -> Pipeline:
    """The pipeline of a file, with what flags say of its log and of Spark, and settings say of Kafka and of Spark.

    Without a file it is an empty one, over the log of the settings.
    """
    from millstream.load import load_pipeline
    from millstream.pipeline import Pipeline

    pipeline = load_pipeline(file) if file is not None else Pipeline("sql", log=settings().log)
    given = click.get_current_context().find_root().obj or {}
    pipeline.log = log_url or given.get("log") or (pipeline.log if pipeline.log_named else settings().log)
    parse_log(pipeline.log)
    pipeline.kafka = pipeline.kafka or settings().kafka
    pipeline.spark = settings().spark | pipeline.spark | ({"spark.master": master} if master else {})
    for each in conf:
        name, equals, value = each.partition("=")
        if not equals or not name.startswith("spark."):
            raise click.UsageError(f"--conf: found {each!r}, expected spark.NAME=VALUE")
        check_setting(name, value, "a flag")
        pipeline.spark[name] = value
    return pipeline


@contextmanager
def quiet_spark(pipeline: Pipeline) -> Iterator[None]:
    """Let Spark and its workers write to ``spark.log`` beside the checkpoint: what matters comes as an error of ours.

    With ``--debug`` they write to the terminal. A Spark that is started in between is stopped at the end.
    """
    before = _spark_runs()
    with quiet_fd(Path(f"{pipeline.checkpoint}.spark.log").absolute()):
        kill = False
        try:
            yield
        except KeyboardInterrupt:
            kill = True
            raise
        finally:
            if _spark_runs() and not before:
                from millstream.spark.session import stop_session

                stop_session(kill=kill)


def _spark_runs() -> bool:
    if "pyspark" not in sys.modules:
        return False
    from millstream.spark.internals.driver_process import active_context

    return active_context() is not None


@contextmanager
def quiet_fd(path: Path) -> Iterator[None]:
    """Let the processes that we start write their errors to a file; our own consoles keep the terminal."""
    if "--debug" in sys.argv or os.environ.get("MILLSTREAM_DEBUG"):
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.fchmod(file, 0o600)  # what Spark says of a failure may hold rows
    except OSError as error:
        raise ConfigError(
            f"{path}: Spark's log cannot be written: {error.strerror}",
            hint="run it where that folder can be written, or set the pipeline's checkpoint to another one",
        ) from error
    kept = os.dup(2)
    os.dup2(file, 2)
    os.close(file)
    before, sys.stderr = sys.stderr, os.fdopen(os.dup(kept), "w", buffering=1)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # what nobody reads any more
            sys.stderr.close()
        sys.stderr = before
        os.dup2(kept, 2)
        os.close(kept)


def show(rows: Sequence[Any], columns: Mapping[str, str], *, as_json: bool, empty: str = "none") -> None:
    """Print rows (dataclasses or mappings): a JSON list, or a table of ``columns`` (field → heading)."""
    dicts = [asdict(row) if is_dataclass(row) and not isinstance(row, type) else dict(row) for row in rows]
    if as_json:
        click.echo(to_json(dicts))
        return
    if not dicts:
        stderr().print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for field, heading in columns.items():
        number = all(isinstance(row[field], int | float) and not isinstance(row[field], bool) for row in dicts)
        table.add_column(printable(heading), justify="right" if number else "left", overflow="fold")
    for row in dicts:
        table.add_row(*(cell(row[field]) for field in columns))
    stdout().print(table)


def cell(value: Any) -> str:
    """A value for people, on one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, timedelta):
        return span(value)
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def span(value: timedelta) -> str:
    """A duration as :class:`Duration` reads it.

    >>> span(timedelta(days=7)), span(timedelta(milliseconds=1500))
    ('7d', '1500ms')
    """
    millis = value // timedelta(milliseconds=1)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if millis and millis % size == 0:
            return f"{millis // size}{unit}"
    return f"{millis}ms" if millis else "0s"


def to_json(value: Any) -> str:
    """JSON with times as ISO 8601 and spans as seconds."""
    return printable_json(msgspec.json.format(msgspec.json.encode(_plain(value)), indent=2).decode())


def json_line(value: Any) -> str:
    """JSON on one line."""
    return printable_json(msgspec.json.encode(_plain(value)).decode())


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


class Duration(click.ParamType[Any]):
    """``500ms``, ``10s``, ``5m``, ``2h``, ``7d``, ``1w``, or ``none``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read one."""
        if not isinstance(value, str):
            return value
        if value == "none":
            return "none"
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", value.strip())
        if not match:
            self.fail(f"{value!r} is not a duration; write 500ms, 10s, 5m, 2h, 7d or none", param, ctx)
        return timedelta(seconds=float(match.group(1)) * _UNITS[match.group(2)])


def confirmed(question: str, *, yes: bool) -> None:
    """Go on only with ``--yes`` or the word of a person."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nothing was changed; add --yes to do it.")
    click.confirm(question, abort=True, err=True)
