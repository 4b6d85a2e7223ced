"""``millstream explain``: what a pipeline does, what it keeps and until when, from its definition alone."""

from __future__ import annotations

from pathlib import Path

import click

from millstream.cli.output import json_option, opened_pipeline, stderr, to_json
from millstream.errors import ConfigError
from millstream.printable import printable


@click.command("explain")
@click.argument("file", metavar="FILE")
@click.argument("view", required=False)
@click.option("--svg", metavar="PATH", type=click.Path(dir_okay=False), help="Write a picture instead.")
@json_option
def command(file: str, view: str | None, svg: str | None, as_json: bool) -> None:
    """Explain what the pipeline of FILE does, or one VIEW of it.

    For each view the tree of its operators, the sources first: what each does and in which stage, what it keeps and why,
    when that is dropped, which expressions run where, what views share, and what a replay may answer differently. Nothing
    is started, and no log need exist.

    \b
    Examples:
      millstream explain shop.py
      millstream explain shop.py per_minute --json
      millstream explain shop.py --svg shop.svg
    """
    from millstream.explain.explain import explain
    from millstream.explain.svg import svg as drawn

    explanation = explain(opened_pipeline(file, None))
    if view is not None:
        explanation = explanation.only(view)
    if svg is not None:
        try:
            Path(svg).write_text(drawn(explanation), encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"--svg {svg}: {error.strerror}", hint="name a file in a folder that can be written"
            ) from error
        stderr().print(f"wrote {svg}", soft_wrap=True)
    if as_json:
        click.echo(to_json(explanation))
    elif svg is None:
        click.echo(printable(str(explanation), lines=True))
