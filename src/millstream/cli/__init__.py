"""The command ``millstream``: one thin file per command; here is what they share at the edge.

Results go to stdout, everything else to stderr. Exit codes: 0 done, also where whoever reads has left (`| head -1`); 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from millstream.cli.output import complain, stderr
from millstream.errors import BadName, ConfigError, MillstreamError
from millstream.version import __version__

COMMANDS = {
    "bench": "bench",
    "capture": "capture",
    "completion": "completion",
    "consume": "consume",
    "doctor": "doctor",
    "erase": "erase",
    "events": "events",
    "explain": "explain",
    "files": "files",
    "groups": "groups",
    "init": "init",
    "lag": "lag",
    "plan": "plan",
    "produce": "produce",
    "rebuild": "rebuild",
    "run": "run",
    "search": "search",
    "serve": "serve",
    "sql": "sql",
    "topics": "topics",
    "vault": "vault",
    "verify": "verify",
    "views": "views",
}
"""Command → module; loaded when named, so that ``--help`` does not wait for Spark or Kafka."""


class _PipeBroke(Exception):
    """A pipe has no reader any more; click, left to itself, would end the process with 1 and say nothing."""


@contextmanager
def _pipes() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _PipeBroke from error


def _is_left() -> bool:
    """Whether nobody reads what we print."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


class _Commands(click.Group):
    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        with _pipes():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with _pipes():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"millstream.cli.{COMMANDS[cmd_name]}").command
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="millstream")
@click.option(
    "--log", metavar="URL", help="The log: sqlite:PATH or kafka://HOST:PORT.  [default: sqlite:millstream.db]"
)
@click.option(
    "--config", metavar="FILE", type=click.Path(), help="Settings.  [default: millstream.toml, if it is there]"
)
@click.option("--debug", is_flag=True, help="Show the stack of an error.")
@click.pass_context
def cli(ctx: click.Context, log: str | None, config: str | None, debug: bool) -> None:
    """Streams, tables and time on Spark.

    Settings come from millstream.toml, then from MILLSTREAM_… variables, then from flags; the last one wins.

    \b
    Examples:
      millstream topics create clicks --partitions 4
      millstream produce clicks --key-field user < clicks.jsonl
      millstream consume clicks --from earliest --max 10
      millstream lag
    """
    ctx.obj = {"log": log, "config": config, "debug": debug}


def main(argv: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code; SIGTERM ends it like SIGINT, in good order."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(execute(argv))


def execute(argv: list[str] | None = None) -> int:
    """Run the command line; give its exit code."""
    debug = "--debug" in (sys.argv if argv is None else argv) or bool(os.environ.get("MILLSTREAM_DEBUG"))
    try:
        result = cli.main(args=argv, prog_name="millstream", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        stderr().print("interrupted")
        return 130
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except _PipeBroke as error:
        if not _is_left():
            raise error.__cause__ or error from None
        # Whoever read us has had enough; do not complain again while Python flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MillstreamError as error:
        if debug:
            traceback.print_exc()
        complain(error)
        return 2 if isinstance(error, ConfigError | BadName) else 1
