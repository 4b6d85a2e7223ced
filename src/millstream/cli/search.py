"""``millstream search``: find rows in a text index."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.output import json_line, json_option, show


@click.command("search")
@click.argument("path", type=click.Path())
@click.argument("words", nargs=-1, required=True)
@click.option("--max", "limit", type=click.IntRange(1), default=10, show_default=True, help="At most so many rows.")
@click.option("--any", "either", is_flag=True, help="One of the words is enough.")
@json_option
def command(path: str, words: tuple[str, ...], limit: int, either: bool, as_json: bool) -> None:
    """Find the rows in which words are, in the file of a sink search:PATH?columns=…, the best first.

    All words must be there. A word that ends with * is any that begins so; several words in quotes are a phrase.

    \b
    Examples:
      millstream search posts.search.db mill water
      millstream search posts.search.db 'grind*' '"old mill"' --any --max 3 --json
    """
    from millstream.sink.search_file import search

    rows: list[dict[str, Any]] = []
    for hit in search(path, words, limit=limit, either=either):
        row: Any = hit.row if as_json else json_line(hit.row)
        rows.append({"rank": hit.rank if as_json else f"{hit.rank:.3f}", "snippet": hit.snippet, "row": row})
    show(rows, {"rank": "RANK", "snippet": "SNIPPET", "row": "ROW"}, as_json=as_json, empty="nothing found")
