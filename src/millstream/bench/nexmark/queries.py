"""Nexmark's questions as pipelines: each query's SQL behind what they have in common, as one script that anyone can run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from string import Template

from millstream.bench.nexmark.data import TOPIC
from millstream.errors import ConfigError
from millstream.event import Event
from millstream.load import load_pipeline
from millstream.log import open_log
from millstream.pipeline import Pipeline

QUERIES = tuple(f"q{number}" for number in range(23))
PATTERNS = tuple(f"cep{number}" for number in range(4))
"""Row patterns; they are asked where they are named, and are no part of the 23."""
SIDE = "side_input"
"""The topic of the table that q13 joins with."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def topic_of(query: str, topic: str = TOPIC) -> str:
    """The topic that a query reads; a pattern's has the bids of an auction in one partition, in their order."""
    return f"{topic}_by_auction" if query in PATTERNS else topic


def script_of(queries: Sequence[str], folder: Path, topic: str = TOPIC) -> str:
    """The statements of some queries over one stream, without those of their pipeline; q12 has a stream of its own."""
    place = files("millstream.bench.nexmark") / "queries"
    own = [(place / f"{query}.sql").read_text() for query in queries]
    shared = [] if "CREATE STREAM" in own[0] else [(place / "prelude.sql").read_text()]
    return Template("\n".join(shared + own)).substitute(folder=folder, topic=topic)


def pipeline_of(
    queries: str | Sequence[str],
    log: str,
    folder: Path,
    *,
    name: str = "nexmark",
    topic: str = TOPIC,
    kept: bool = True,
) -> Pipeline:
    """The pipeline of a query, or of some, over a log; its script, checkpoint and views lie in a folder.

    Unless ``kept``, the views are kept nowhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.sql"
    options = f"log = '{log}', to = 'sqlite:{folder / 'views.db'}', checkpoint = '{folder / 'checkpoint'}'"
    script = script_of([queries] if isinstance(queries, str) else queries, folder, topic)
    path.write_text(f"CREATE PIPELINE {name} WITH ({options});\n\n{script}")
    pipeline = load_pipeline(path)
    pipeline.views = {name: replace(view, kept=kept) for name, view in pipeline.views.items()}
    return pipeline


def side_rows() -> list[Event]:
    """The table that q13 joins with; its rows are older than any event."""
    return [Event(b'{"key":%d,"value":"%d"}' % (key, key), b"%d" % key, _EPOCH) for key in range(10_000)]


def fill_side(log: str) -> None:
    """Make that table's topic."""
    with open_log(log, create=log.startswith("sqlite:")) as opened:
        opened.create_topic(SIDE, 1)
        opened.append(SIDE, side_rows())


def chosen(text: str | None) -> tuple[str, ...]:
    """The queries that a text names; the 23 without one, and with ``all`` the patterns too.

    >>> chosen("q0,q3-q5,cep0-cep1")
    ('q0', 'q3', 'q4', 'q5', 'cep0', 'cep1')
    """
    if not text:
        return QUERIES
    found: list[str] = []
    for part in text.split(","):
        found += [query for query in _named(part.strip()) if query not in found]
    return tuple(found)


def _named(part: str) -> tuple[str, ...]:
    """Those that one part of such a text names."""
    if part == "all":
        return QUERIES + PATTERNS
    for kind, names in (("q?", QUERIES), ("cep", PATTERNS)):
        if match := re.fullmatch(rf"{kind}(\d+)(?:-{kind}(\d+))?", part):
            low, high = int(match[1]), int(match[2] or match[1])
            if low <= high < len(names):
                return names[low : high + 1]
    raise ConfigError(f"queries: found {part!r}, expected such as q5 or q3-q9, up to {QUERIES[-1]}, cep0-cep3, or all")
