"""``millstream rebuild``: compute views anew beside the stored ones, then exchange them."""

from __future__ import annotations

import click

from millstream.cli.logs import is_logging, logging_options
from millstream.cli.output import json_option, log_option, opened_pipeline, quiet_spark, spark_options, stderr
from millstream.cli.run import FORGET, shown, stopping
from millstream.errors import UnknownView


@click.command("rebuild")
@click.argument("file", metavar="FILE")
@click.argument("views", metavar="[VIEW]...", nargs=-1)
@click.option("--takeover", is_flag=True, help="Exchange them even while the old version runs; that one then ends.")
@click.option("--rollback", is_flag=True, help="Let the version before the last rebuild take its place again.")
@click.option(
    "--rate-limit", type=click.IntRange(1), metavar="N", help="At most N records a batch.  [default: 4000000]"
)
@click.option("--forget-history", is_flag=True, help=FORGET)
@spark_options
@logging_options
@log_option
@json_option
def command(
    file: str,
    views: tuple[str, ...],
    takeover: bool,
    rollback: bool,
    rate_limit: int | None,
    forget_history: bool,
    master: str | None,
    conf: tuple[str, ...],
    log_url: str | None,
    as_json: bool,
) -> None:
    """Compute the views of FILE anew from the log, beside the stored ones, and let them take their place when caught up.

    The old views can be read, and the old version may run, until then. They are kept as VIEW~old, for --rollback. State belongs to
    a pipeline as a whole, so all views are computed anew, a new one among them is filled from the beginning of the log; VIEW only
    says which you mean.

    \b
    Examples:
      millstream rebuild shop.py
      millstream rebuild shop.py per_minute --takeover
      millstream rebuild shop.py --rollback
    """
    from millstream.runtime.rebuild import rebuild, roll_back

    pipeline = opened_pipeline(file, log_url, master=master, conf=conf)
    for view in views:
        if view not in pipeline.views:
            raise UnknownView(f"no view {view} in {file}; there are {', '.join(pipeline.views)}")
    if rollback:
        roll_back(pipeline, takeover=takeover)
        stderr().print(f"{pipeline.name}: the version before is back; `millstream run` goes on with its definition")
        return
    with stopping() as stop, quiet_spark(pipeline), shown(pipeline, as_json, stop) as report:
        rebuild(
            pipeline,
            takeover=takeover,
            rate_limit=rate_limit,
            forget_history=forget_history,
            progress=report,
            stop=stop,
        )
    if not (as_json or is_logging()):
        said = (
            "interrupted; the same command goes on"
            if stop.is_set()
            else "the new version is in place, the old one is kept"
        )
        stderr().print(f"{pipeline.name}: {said}")
