"""``millstream init``: a project to begin with, whose test passes and whose pipeline runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from millstream.cli.output import json_option, to_json
from millstream.config import FILE
from millstream.errors import ConfigError

_PIPELINE = '''\
"""Clicks, counted per page and minute."""

from millstream import Pipeline, window

app = Pipeline("{title}")

clicks = app.stream(
    "clicks",
    "user long, page string, at timestamp",
    key="user",
    time="at",
    delay="10 seconds",  # by so much an event may come behind the newest one
)

app.view(
    "per_minute",
    clicks.group_by("page", window.tumbling("at", "1 minute")).agg(n="count(*)", people="count(distinct user)"),
)
'''

_TEST = '''\
"""The pipeline on trial: no broker, no Spark. The fixture `trial` comes with Millstream."""

from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def click(user, page, seconds):
    return {"user": user, "page": page, "at": NOON + timedelta(seconds=seconds)}


def test_clicks_are_counted_per_page_and_minute(trial):
    app = trial("pipeline.py")
    app.feed("clicks", [click(1, "/", 5), click(2, "/", 40), click(1, "/pay", 59)])
    app.crash()
    app.feed("clicks", [click(1, "/", 58), click(1, "/", 61)])
    found = [(row["page"], row["window_start"], row["n"], row["people"]) for row in app.rows("per_minute")]
    minute = timedelta(minutes=1)
    assert found == [("/", NOON, 3, 2), ("/", NOON + minute, 1, 1), ("/pay", NOON, 1, 1)]


def test_a_click_that_comes_too_late_is_a_dead_letter(trial):
    app = trial("pipeline.py")
    app.feed("clicks", [click(1, "/", 60), click(1, "/", 49)])
    assert [(letter["offset"], letter["reason"]) for letter in app.rejected("clicks")] == [(1, "late")]
'''

_CLICKS = """\
{"user": 1, "page": "/", "at": "2026-01-31T12:00:05Z"}
{"user": 2, "page": "/", "at": "2026-01-31T12:00:40Z"}
{"user": 1, "page": "/pay", "at": "2026-01-31T12:01:10Z"}
{"user": 1, "page": "/", "at": "2026-01-31T12:00:20Z"}
"""

_CONFIG = """\
# Settings of the command `millstream` in this folder; the environment and flags win over them.
log = "sqlite:millstream.db"
"""

_IGNORE = """\
*.db
*.db-*
*.checkpoint/
*.spark.log
archive/
__pycache__/
.pytest_cache/
"""

_README = """\
# {title}

`pipeline.py` says which topics there are and which views are kept of them; `test_pipeline.py` tries it, without a broker
and without Spark; `millstream.toml` has the settings of the command.

Test it, then run it over the clicks of `clicks.jsonl`. The last of them comes too late and is a dead letter.

```sh
{commands}
```

`millstream explain pipeline.py` says what is kept and for how long, `millstream run pipeline.py` keeps the views up to date until
you stop it, and `millstream verify pipeline.py` computes them anew from the log and compares.
"""

_NEXT = (
    "pytest",
    "millstream topics create clicks",
    "millstream produce clicks --key-field user --time-field at --file clicks.jsonl",
    "millstream run pipeline.py --once",
    "millstream views show per_minute",
)


@click.command("init")
@click.argument("folder", default=".", type=click.Path(file_okay=False, path_type=Path))
@json_option
def command(folder: Path, as_json: bool) -> None:
    """Make a project in FOLDER (here, unless named): a pipeline, its test, settings, some events, a README.

    Nothing that is there is touched: if one of the files exists, none is written.

    \b
    Examples:
      millstream init
      millstream init shop
    """
    files = project(folder.resolve().name)
    taken = [name for name in files if (folder / name).exists()]
    if taken:
        raise ConfigError(
            f"{folder}: {', '.join(taken)} {'is' if len(taken) == 1 else 'are'} there already; nothing was written",
            hint="name another folder: millstream init FOLDER",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}", hint="name a folder that can be written") from error
    steps = [*([] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]), *_NEXT]
    if as_json:
        click.echo(to_json({"folder": str(folder), "files": list(files), "next": steps}))
        return
    click.echo(f"made {', '.join(files)} in {folder}; next:\n")
    for step in steps:
        click.echo(f"  {step}")


def project(folder: str) -> dict[str, str]:
    """The files of a project, by name; the pipeline is called after the folder."""
    title = re.sub(r"[^A-Za-z0-9_-]+", "-", folder).strip("-")[:63] or "shop"
    return {
        "pipeline.py": _PIPELINE.format(title=title),
        "test_pipeline.py": _TEST,
        "clicks.jsonl": _CLICKS,
        FILE: _CONFIG,
        ".gitignore": _IGNORE,
        "README.md": _README.format(title=title, commands="\n".join(_NEXT)),
    }
