"""Nexmark's questions as pipelines: each query's SQL behind what they have in common, as one script that anyone can run."""

from __future__ import annotations

import re
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
SIDE = "side_input"
"""The topic of the table that q13 joins with."""
SIDE_ROWS = 10_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def script_of(query: str, folder: Path, topic: str = TOPIC) -> str:
    """The statements of a query, without those of its pipeline."""
    place = files("millstream.bench.nexmark") / "queries"
    own = (place / f"{query}.sql").read_text()
    shared = "" if "CREATE STREAM" in own else (place / "prelude.sql").read_text() + "\n"
    return Template(shared + own).substitute(folder=folder, topic=topic)


def pipeline_of(query: str, log: str, folder: Path, *, name: str = "", topic: str = TOPIC) -> Pipeline:
    """The pipeline of a query over a log; its script, checkpoint and views lie in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{query}.sql"
    options = f"log = '{log}', to = 'sqlite:{folder / 'views.db'}', checkpoint = '{folder / 'checkpoint'}'"
    path.write_text(f"CREATE PIPELINE {name or query} WITH ({options});\n\n{script_of(query, folder, topic)}")
    return load_pipeline(path)


def fill_side(log: str) -> None:
    """Make the table that q13 joins with; its rows are older than any event."""
    events = [Event(b'{"key":%d,"value":"%d"}' % (key, key), b"%d" % key, _EPOCH) for key in range(SIDE_ROWS)]
    with open_log(log, create=log.startswith("sqlite:")) as opened:
        opened.create_topic(SIDE, 1)
        opened.append(SIDE, events)


def chosen(text: str | None) -> tuple[str, ...]:
    """The queries that a text names.

    >>> chosen("q0,q3-q5")
    ('q0', 'q3', 'q4', 'q5')
    """
    if not text:
        return QUERIES
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"q?(\d+)(?:-q?(\d+))?", part.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= low <= high < len(QUERIES):
            raise ConfigError(f"queries: found {part!r}, expected such as q5 or q3-q9, up to {QUERIES[-1]}")
        found += [query for query in QUERIES[low : high + 1] if query not in found]
    return tuple(found)
