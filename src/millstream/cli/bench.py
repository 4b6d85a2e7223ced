"""``millstream bench``: measure on this machine, beside the plain way."""

from __future__ import annotations

from importlib import import_module

import click

from millstream.bench import Result, report
from millstream.cli.output import json_option, show, stderr, to_json

_scale = click.option(
    "--scale",
    type=click.FloatRange(0.001, 10),
    default=1.0,
    show_default=True,
    help="Measure less (or more) of everything.",
)


@click.group("bench")
def command() -> None:
    """Measure on this machine, beside the plain way, in one run."""


@command.command("log")
@click.option(
    "--only",
    metavar="NAMES",
    help="Only these, by comma: append, append_kafka, read, spark_read, delay_p99, append_growth.",
)
@_scale
@json_option
def log(only: str | None, scale: float, as_json: bool) -> None:
    """Measure the event log: records of 100 bytes, 4 partitions. Takes some minutes, and 2 GB in the temporary folder.

    \b
    Examples:
      millstream bench log
      millstream bench log --only append,read --json
    """
    _measure("log", only, scale, as_json)


@command.command("engine")
@click.option(
    "--only",
    metavar="NAMES",
    help="Only these, by comma: reduce, distinct, keys_growth, state_growth, checkpoint_bytes, delay_p50, delay_p99, start.",
)
@_scale
@json_option
def engine(only: str | None, scale: float, as_json: bool) -> None:
    """Measure pipelines: JSON records in the log to a view, beside plain Structured Streaming. Takes some ten minutes.

    \b
    Examples:
      millstream bench engine
      millstream bench engine --only reduce,start --json
    """
    _measure("engine", only, scale, as_json)


@command.command("operators")
@click.option(
    "--only",
    metavar="NAMES",
    help="Only these, by comma: tumbling, hopping, session, sliding, interval_join, asof_join, table_join, top, distinct,"
    " deduplicate.",
)
@_scale
@json_option
def operators(only: str | None, scale: float, as_json: bool) -> None:
    """Measure each operator: beside plain Structured Streaming where that has it, and beside one Polars job, the limit.

    \b
    Examples:
      millstream bench operators
      millstream bench operators --only session,interval_join --json
    """
    _measure("operators", only, scale, as_json)


@command.command("delivery")
@click.option("--only", metavar="NAMES", help="Only these, by comma: sqlite, postgres, kafka, redis, files, catch_up.")
@_scale
@json_option
def delivery(only: str | None, scale: float, as_json: bool) -> None:
    """Measure sinks: exactly once, beside the plain way at least once; and catching up with a backlog on Kafka.

    Starts servers of its own: PostgreSQL and Redis must be installed, Kafka is fetched. Takes some minutes.

    \b
    Examples:
      millstream bench delivery
      millstream bench delivery --only sqlite,kafka --json
    """
    _measure("delivery", only, scale, as_json)


def _measure(what: str, only: str | None, scale: float, as_json: bool) -> None:
    bench = import_module(f"millstream.bench.{what}")
    names = _chosen(only, bench.NAMES)
    with stderr().status("") as status:
        results = list(bench.measure(names, scale, status.update))
    _print(results, as_json)


def _print(results: list[Result], as_json: bool) -> None:
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


def _chosen(only: str | None, names: tuple[str, ...]) -> tuple[str, ...]:
    chosen = tuple(only.split(",")) if only else names
    if unknown := set(chosen) - set(names):
        raise click.UsageError(f"--only: found {', '.join(sorted(unknown))}, expected some of {', '.join(names)}")
    return chosen
