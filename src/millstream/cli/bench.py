"""``millstream bench``: measure on this machine, beside the plain way."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import click

from millstream.bench import Result, report
from millstream.cli.output import json_option, quiet_fd, show, stderr, to_json

if TYPE_CHECKING:
    from rich.console import Console

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


@command.command("capture")
@click.option(
    "--only",
    metavar="NAMES",
    help="Only these, by comma: postgres_snapshot, postgres_changes, mariadb_changes, sqlite_changes, follow;"
    " and debezium_changes, if named.",
)
@_scale
@json_option
def capture(only: str | None, scale: float, as_json: bool) -> None:
    """Measure change capture: real databases of 100,000 rows into the embedded log. Takes some minutes.

    Each capture is a process of its own: its rate, processor's seconds and memory. follow is the delay from a COMMIT to a view, at
    1,000 changes a second. debezium_changes is Debezium's engine over the same changes as postgres_changes; it is fetched, 200 MB. Starts servers of its own: PostgreSQL and MariaDB must be installed.

    \b
    Examples:
      millstream bench capture
      millstream bench capture --only postgres_changes,debezium_changes --json
    """
    _measure("capture", only, scale, as_json)


@command.command("sourcing")
@click.option("--only", metavar="NAMES", help="Only these, by comma: commands, commands_many, replay, erase.")
@_scale
@json_option
def sourcing(only: str | None, scale: float, as_json: bool) -> None:
    """Measure event sourcing: commands a second beside the package eventsourcing on SQLite, and events read and folded. And erasure.

    Both make every commit durable. commands is one after the other to one aggregate, which the disk bounds: how often it syncs is told
    beside. commands_many is to 10,000 aggregates. The package is installed into an environment of its own on first use, 1 MB. erase
    is the seconds that the log takes to blank a thousandth of a million records, beside reading them once.

    \b
    Examples:
      millstream bench sourcing
      millstream bench sourcing --only commands_many --json
    """
    _measure("sourcing", only, scale, as_json)


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


@command.command("nexmark")
@click.option("--queries", metavar="NAMES", help="Only these, such as q0,q3-q9,cep0-cep3, or all.  [default: q0-q22]")
@click.option("--events", type=click.IntRange(1), default=1_000_000, show_default=True, help="How many events to make.")
@click.option("--seed", type=int, default=0, show_default=True, help="What the events are made from.")
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Take the events of a folder of *.jsonl.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write each answer to DIR/qN.json.")
@click.option("--log", type=click.Choice(["sqlite", "kafka"]), default="sqlite", show_default=True, help="Where from.")
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Time each so often; the median.")
@click.option(
    "--rate-limit", type=click.IntRange(1), metavar="N", help="At most N records a batch.  [default: 4000000]"
)
@click.option("--store", is_flag=True, help="Store the views in SQLite in the timed runs too.")
@click.option("--growth", is_flag=True, help="Also the cost of an event, by that with a tenth of the events.")
@click.option("--delay", is_flag=True, help="Instead: from append to view at 10,000 events/s, of q1, q4, q5, q7.")
@click.option("--stages", is_flag=True, help="Instead: processor seconds by stage, for a million events. On Linux.")
@click.option("--seconds", type=click.FloatRange(1), default=30.0, show_default=True, help="How long, for --delay.")
@click.option("--compare", metavar="SYSTEMS", help="Beside others, by comma: flink, flink_heap, spark, polars.")
@json_option
def nexmark(
    queries: str | None,
    events: int,
    seed: int,
    data: Path | None,
    out: Path | None,
    log: str,
    repeat: int,
    rate_limit: int | None,
    store: bool,
    growth: bool,
    delay: bool,
    stages: bool,
    seconds: float,
    compare: str | None,
    as_json: bool,
) -> None:
    """Measure the 23 queries of Nexmark, and compare each answer with DuckDB's. Exit code 1 if one is wrong.

    cep0 to cep3 are patterns of rows; they run where they are named, and their answers come from plain loops in Python.

    A rate is events by wall time, from the start of a query until all events are in and every window is closed, with Spark up and warm. The view is
    kept nowhere: its rows are computed and let go, as where others write to a blackhole; q10 writes its files. The answer comes from one more run, not
    timed, that stores the view. --delay stores it too. Needs millstream[bench]. A million events take some 2 GB in the temporary folder.

    \b
    Examples:
      millstream bench nexmark --queries q0,q5 --events 200000
      millstream bench nexmark --queries cep0-cep3 --compare flink
      millstream bench nexmark --data events/ --out answers/ --json
      millstream bench nexmark --delay
    """
    from millstream.bench.nexmark import delay as delays
    from millstream.bench.nexmark import run
    from millstream.bench.nexmark import stages as by_stage
    from millstream.bench.nexmark.peers import SYSTEMS
    from millstream.bench.nexmark.queries import chosen

    names = chosen(queries)
    systems = tuple(compare.split(",")) if compare else ()
    if unknown := sorted(set(systems) - set(SYSTEMS)):
        raise click.UsageError(f"--compare: found {', '.join(unknown)}, expected some of {', '.join(SYSTEMS)}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-bench-")))
        stack.enter_context(quiet_fd(folder / "spark.log"))
        console = stderr()
        status = stack.enter_context(console.status(""))
        if delay:
            some = names if queries else delays.QUERIES
            _print(list(delays.measure(some, seconds, seed, folder, status.update)), as_json)
            return
        if stages:
            _print(list(by_stage.measure(names, events, seed, folder, status.update)), as_json)
            return
        wanted = run.Wanted(names, events, seed, data, out, log, repeat, rate_limit, growth, systems, store)
        found = list(_told(run.measure(wanted, folder, status.update), console))
    _print_rates(found, growth, systems, as_json)
    if any(each.correct is False for each in found if each.system == run.OURS):
        sys.exit(1)


@command.command("patterns")
@click.option(
    "--only",
    metavar="NAMES",
    help="Only these, by comma: cep0, cep1, cep2, cep3, many_1, many_10, many_100, percolate_100, percolate_10000.",
)
@click.option("--events", type=click.IntRange(1), default=1_000_000, show_default=True, help="How many events to make.")
@click.option("--seed", type=int, default=0, show_default=True, help="What the events are made from.")
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Time each so often; the median.")
@click.option("--compare", metavar="SYSTEMS", help="Beside others, by comma: flink, flink_heap.")
@json_option
def patterns(only: str | None, events: int, seed: int, repeat: int, compare: str | None, as_json: bool) -> None:
    """Measure row patterns and stored queries over Nexmark's events, beside Flink's MATCH_RECOGNIZE.

    cep0 to cep3 are those of bench nexmark; a wrong answer is an error. many_N is N patterns in one pass, and percolate_N
    is N stored queries of twenty shapes; they stand beside the fewest of their kind. Flink durable takes some
    2,000 events/s of such patterns, and is fetched on first use: 900 MB. Needs millstream[bench].

    \b
    Examples:
      millstream bench patterns --only cep0,many_1,many_100
      millstream bench patterns --compare flink,flink_heap --events 200000 --json
    """
    from millstream.bench import patterns as bench

    names = _chosen(only, bench.NAMES, ())
    systems = tuple(compare.split(",")) if compare else ()
    if unknown := sorted(set(systems) - set(bench.SYSTEMS)):
        raise click.UsageError(f"--compare: found {', '.join(unknown)}, expected some of {', '.join(bench.SYSTEMS)}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-bench-")))
        stack.enter_context(quiet_fd(folder / "spark.log"))
        status = stack.enter_context(stderr().status(""))
        asked = bench.Asked(names, events, seed, repeat, systems)
        results = list(bench.measure(asked, folder, status.update))
    _print(results, as_json)


def _print_rates(found: list[Any], growth: bool, systems: tuple[str, ...], as_json: bool) -> None:
    """All results, and how each system compares over all queries."""
    if as_json:
        click.echo(to_json(report(found)))
        return
    columns = {"name": "NAME", "system": "SYSTEM", "value": "EVENTS/S", "seconds": "SECONDS", "correct": "CORRECT"}
    columns |= ({"growth": "GROWTH"} if growth else {}) | ({"ratio": "RATIO"} if systems else {}) | {"note": "NOTE"}
    shown = [dict.fromkeys(columns) | each.to_dict() for each in found]
    for row in shown:
        row |= {name: f"{row[name]:.2f}" for name in ("growth", "ratio") if row.get(name)}
    show(shown, columns, as_json=False)
    for system in systems:
        if ratios := [each.ratio for each in found if each.system == system and each.ratio]:
            click.echo(f"{system}: {geometric_mean(ratios):.2f} times its rate, over {len(ratios)} queries")


def _told(results: Iterable[Any], console: Console) -> Iterator[Any]:
    """Results as they come, each said when it does."""
    for each in results:
        console.print(_line(each.to_dict()))
        yield each


def _line(fields: dict[str, Any]) -> str:
    """One result, as it comes."""
    if "value" not in fields:
        return f"{fields['name']} {fields['system']}: {fields['note']}"
    return f"{fields['name']} {fields['system']}: {fields['value']:,} events/s, {'right' if fields['correct'] else 'WRONG'}"


def _measure(what: str, only: str | None, scale: float, as_json: bool) -> None:
    bench = import_module(f"millstream.bench.{what}")
    names = _chosen(only, bench.NAMES, getattr(bench, "FURTHER", ()))
    with stderr().status("") as status:
        results = list(bench.measure(names, scale, status.update))
    _print(results, as_json)


def _print(results: list[Result], as_json: bool) -> None:
    if as_json:
        click.echo(to_json(report(results)))
        return
    rows = [{"against": "", "baseline": None, "ratio": None, "note": ""} | result.to_dict() for result in results]
    columns = {
        "name": "NAME",
        "value": "VALUE",
        "unit": "UNIT",
        "ratio": "RATIO",
        "baseline": "BASELINE",
        "against": "AGAINST",
    } | ({"note": "NOTE"} if any(result.note for result in results) else {})
    show(rows, columns, as_json=False)


def _chosen(only: str | None, names: tuple[str, ...], further: tuple[str, ...]) -> tuple[str, ...]:
    chosen, known = tuple(only.split(",")) if only else names, (*names, *further)
    if unknown := set(chosen) - set(known):
        raise click.UsageError(f"--only: found {', '.join(sorted(unknown))}, expected some of {', '.join(known)}")
    return chosen
