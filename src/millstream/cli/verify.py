"""``millstream verify``: are the views what the log says?"""

from __future__ import annotations

from dataclasses import asdict

import click

from millstream.cli.logs import logging_options
from millstream.cli.output import (
    json_option,
    log_option,
    opened_pipeline,
    quiet_spark,
    show,
    spark_options,
    stderr,
    to_json,
)


@click.command("verify")
@click.argument("file", metavar="FILE")
@spark_options
@logging_options
@log_option
@json_option
def command(file: str, master: str | None, conf: tuple[str, ...], log_url: str | None, as_json: bool) -> int:
    """Compute every view of FILE anew from the log, in one batch, and compare it with what is stored.

    Reads up to the offsets that the views are at; changes nothing. Exit code 1 if a view differs. Views that are kept nowhere are
    skipped.

    \b
    Examples:
      millstream verify shop.py
      millstream verify shop.py --json
    """
    from millstream.runtime.verify import verify

    pipeline = opened_pipeline(file, log_url, master=master, conf=conf)
    with quiet_spark(pipeline), stderr().status(f"computing the views of {pipeline.name} from the log"):
        verified = verify(pipeline)
    if as_json:
        views = [{**asdict(view), "equal": view.equal} for view in verified.views]
        click.echo(to_json({**asdict(verified), "equal": verified.equal, "views": views}))
        return 0 if verified.equal else 1
    rows = [{**asdict(view), "equal": view.equal} for view in verified.views]
    columns = {"view": "VIEW", "rows": "ROWS", "missing": "MISSING", "extra": "EXTRA", "equal": "EQUAL"}
    show(rows, columns, as_json=False)
    for view in verified.views:
        for what, example in view.examples:
            stderr().print(f"{view.view}: {what}: {example}", soft_wrap=True)
    for name in verified.skipped:
        stderr().print(f"{name}: skipped, it is kept nowhere", highlight=False)
    said = "equal" if verified.equal else "NOT equal"
    stderr().print(f"{pipeline.name}, batch {verified.batch}, {verified.records:,} records: {said}")
    return 0 if verified.equal else 1
