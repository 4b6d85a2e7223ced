"""``millstream bench``: measure on this machine, beside the plain way."""

from __future__ import annotations

import click

from millstream.cli.output import json_option, show, stderr, to_json


@click.group("bench")
def command() -> None:
    """Measure on this machine, beside the plain way, in one run."""


@command.command("log")
@click.option(
    "--only",
    metavar="NAMES",
    help="Only these, by comma: append, append_kafka, read, spark_read, delay_p99, append_growth.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0.001, 10),
    default=1.0,
    show_default=True,
    help="Measure less (or more) of everything.",
)
@json_option
def log(only: str | None, scale: float, as_json: bool) -> None:
    """Measure the event log: records of 100 bytes, 4 partitions. Takes some minutes, and 2 GB in the temporary folder.

    \b
    Examples:
      millstream bench log
      millstream bench log --only append,read --json
    """
    from millstream.bench import report
    from millstream.bench.log import NAMES, run

    names = tuple(only.split(",")) if only else NAMES
    if unknown := set(names) - set(NAMES):
        raise click.UsageError(f"--only: found {', '.join(sorted(unknown))}, expected some of {', '.join(NAMES)}")
    with stderr().status("") as status:
        results = list(run(names, scale, status.update))
    if as_json:
        click.echo(to_json(report(results)))
        return
    rows = [{"against": "", "baseline": None, "ratio": None} | result.to_dict() for result in results]
    columns = {
        "name": "NAME",
        "value": "VALUE",
        "unit": "UNIT",
        "ratio": "RATIO",
        "baseline": "BASELINE",
        "against": "AGAINST",
    }
    show(rows, columns, as_json=False)
