"""``millstream completion``: the script that makes a shell complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    Examples:
      millstream completion bash >> ~/.bashrc
      millstream completion fish > ~/.config/fish/completions/millstream.fish
    """
    from millstream.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  (the choices are click's own)
    click.echo(kind(cli, {}, "millstream", "_MILLSTREAM_COMPLETE").source())
