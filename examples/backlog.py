"""A backlog is no spike: the same requests, counted by the time of their append and by the time at which they happened.

Two agents send a steady stream of requests. One of them is stopped for half an hour and then sends all that it has kept. Nobody
waits for that: the clock of the log is set by hand. `python examples/backlog.py`; with `--svg FILE` it draws the chart.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from millstream import Event, Pipeline, run, window
from millstream.log.embedded.engine import SqliteLog

MINUTE = timedelta(minutes=1)
BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
STOPPED, BACK, END = BEGIN + 30 * MINUTE, BEGIN + 60 * MINUTE, BEGIN + 120 * MINUTE
SIZE = 5 * MINUTE
TIMES = {"append": "_append_time", "event": "at"}

Counts = dict[datetime, dict[str, int]]


def record(path: Path) -> None:
    """Fill a log with two hours of requests: every agent sends once a minute what it has, if it can."""
    now = BEGIN
    kept: dict[str, list[Event]] = {"a": [], "b": []}
    with SqliteLog(path, clock=lambda: int(now.timestamp() * 1000)) as log:
        log.create_topic("requests")
        while now < END:
            for agent, waiting in kept.items():
                for second in range(0, 60, 10):
                    at = now + timedelta(seconds=second)
                    waiting.append(Event(json.dumps({"agent": agent, "at": at.isoformat()}).encode(), time=at))
            now += MINUTE - timedelta(seconds=1)
            for agent, waiting in kept.items():
                if agent == "a" or not STOPPED <= now < BACK:
                    log.append("requests", waiting)
                    waiting.clear()
            now += timedelta(seconds=1)


def pipeline(folder: Path, by: str) -> Pipeline:
    """Count requests in windows of one time or the other; nothing else differs."""
    made = Pipeline(
        f"by-{by}", log=f"sqlite:{folder / 'log.db'}", to=f"sqlite:{folder / by}.db", checkpoint=str(folder / by)
    )
    time = TIMES[by]
    # An event that is up to an hour late still counts where it belongs.
    late = {"late": "correct", "lateness": "1 hour"}
    requests = made.stream("requests", "agent string, at timestamp", time=time, idle=None, **late)
    made.view("requests_per_window", requests.group_by(window.tumbling(time, SIZE)).agg(n="count(*)"))
    return made


def measure(folder: Path) -> Counts:
    """Record the requests, count them both ways, and give the counts of each window."""
    record(folder / "log.db")
    counts: Counts = {BEGIN + SIZE * n: dict.fromkeys(TIMES, 0) for n in range((END - BEGIN) // SIZE)}
    for by in TIMES:
        made = pipeline(folder, by)
        run(made, once=True)
        for row in made.views["requests_per_window"].to_polars().iter_rows(named=True):
            counts[row["window_start"]][by] = row["n"]
    return counts


def table(counts: Counts) -> str:
    lines = ["window  by append time  by event time"]
    lines += [f"{start:%H:%M}   {each['append']:>14}  {each['event']:>13}" for start, each in counts.items()]
    return "\n".join(lines)


STYLE = """
.ground { fill: #ffffff }
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328 }
.axis { stroke: #d0d7de }
.stopped { fill: #f6f8fa }
.append { stroke: #bc4c00 }
.event { stroke: #1a7f37; stroke-dasharray: 6 3 }
.append, .event { fill: none; stroke-width: 2.5 }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117 }
  text { fill: #e6edf3 }
  .axis { stroke: #30363d }
  .stopped { fill: #161b22 }
  .append { stroke: #f0883e }
  .event { stroke: #3fb950 }
}
"""


def chart(counts: Counts) -> str:
    """Draw both counts as steps over time; the text of an SVG file."""
    width, height, left, top, floor = 760, 320, 48, 48, 280
    most = max(max(each.values()) for each in counts.values())
    step = (width - left - 24) / len(counts)

    def x(at: datetime) -> float:
        return round(left + (at - BEGIN) / SIZE * step, 1)

    def y(count: float) -> float:
        return round(floor - (floor - top) * count / most, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        "<title>Requests in 5 minutes, by the time of the append and by the time of the event</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{height}"/>',
        f'<rect class="stopped" x="{x(STOPPED)}" y="{top}" width="{x(BACK) - x(STOPPED):.1f}" height="{floor - top}"/>',
        f'<text x="{x(STOPPED) + 6}" y="{top + 16}">one agent is stopped</text>',
    ]
    for count in range(0, most + 1, 60):
        parts.append(f'<path class="axis" d="M{left} {y(count)}H{width - 24}"/>')
        parts.append(f'<text x="{left - 8}" y="{y(count) + 4}" text-anchor="end">{count}</text>')
    for start in list(counts)[::6]:
        parts.append(f'<text x="{x(start)}" y="{floor + 20}" text-anchor="middle">{start:%H:%M}</text>')
    for place, by in enumerate(TIMES):
        steps = "".join(f"V{y(each[by])}H{x(start + SIZE)}" for start, each in counts.items())
        parts.append(f'<path class="{by}" d="M{left} {y(counts[BEGIN][by])}{steps}"/>')
        key = left + place * 220
        parts.append(f'<path class="{by}" d="M{key} 24h28"/><text x="{key + 36}" y="28">by {by} time</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    options.add_argument("--svg", type=Path, metavar="FILE", help="draw the chart")
    wanted = options.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="millstream-backlog-", ignore_cleanup_errors=True) as folder:
        counts = measure(Path(folder))
    print(table(counts))
    if wanted.svg:
        wanted.svg.write_text(chart(counts))


if __name__ == "__main__":
    main()
