"""Write docs/reference/cli.md from the commands themselves; ``make docs`` runs it. With ``--check`` it writes nothing, and fails where the page is stale."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from millstream.cli import cli

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
WIDTH = 100
HEAD = """\
# The command line

This page is made by `make docs` from the commands themselves; do not edit it.

Results go to stdout, everything else to stderr. Exit codes: 0 done, also where whoever reads has left (`| head -1`); 1 failed, 2 wrong usage, 130 interrupted.
`--log`, `--config` and `--debug` may stand before the command; `--log` and `--debug` also after it.
What they default to: [configuration](configuration.md). What errors mean: [errors](errors.md).
"""


def commands(command: click.Command, parent: click.Context | None = None) -> Iterator[tuple[str, click.Context]]:
    """Give every command with its full name, a group before its commands."""
    name = command.name if parent else "millstream"
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield context.command_path, context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None, f"{name} lists {each} and does not know it"
            yield from commands(found, context)


def render() -> str:
    """Give the whole page."""
    parts = [HEAD]
    for path, context in commands(cli):
        parts.append(f"## {path}\n\n```text\n{context.get_help().strip()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == render() else f"{PAGE.name} is stale: run `make docs`")
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render())
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")
