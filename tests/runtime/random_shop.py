"""Random pipelines of one family, random records for them, and what their views should hold, in plain Python.

The record that Spark decodes is decoded here a second time, by Python's own JSON; the rest is :mod:`tests.kernel.oracle`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from millstream.event import Event, Record
from millstream.kernel.state.store import NEVER
from millstream.log.contract import Log
from millstream.pipeline import Pipeline
from millstream.relation.nodes import Aggregation, Source, source_of
from millstream.store import open_reader, open_writer
from millstream.view import View
from millstream.window import tumbling
from tests.contracts.log import read_all
from tests.kernel.local import Rec, hashable
from tests.kernel.oracle import Judge, latest, reduce

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
CLICK = "user long, page string, amount double, at timestamp, who string, nth long"
MINUTE = 60_000_000
MEASURES = {
    "mean": Aggregation("mean", "avg", ("amount",)),
    "least": Aggregation("least", "min", ("amount",)),
    "most": Aggregation("most", "max", ("user",)),
    "people": Aggregation("people", "count_distinct", ("user",)),
    "cheapest": Aggregation("cheapest", "min_by", ("page", "amount")),
    "dearest": Aggregation("dearest", "max_by", ("user", "amount")),
    "everyone": Aggregation("everyone", "collect_list", ("user",)),
    "pages": Aggregation("pages", "collect_set", ("page",)),
}
COUNT = Aggregation("n", "count", ())
TOTAL = Aggregation("total", "sum", ("amount",))
PAGES = ("/a", "/ü", "日本 🚲", "", "o'clock", None)


@dataclass(frozen=True)
class Shop:
    """What a seed decides; ``numbered`` says whether clicks have a sequence, without which they are admitted where they are read."""

    seed: int
    numbered: bool = True
    late: str = field(init=False)
    partitions: int = field(init=False)
    buckets: int = field(init=False)
    measures: tuple[Aggregation, ...] = field(init=False)
    floor: int | None = field(init=False)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        chosen = {
            "late": ("drop", "route", "correct")[self.seed % 3],
            "partitions": chance.randint(1, 3),
            "buckets": chance.choice((1, 3, 16)),
            "measures": (COUNT, TOTAL, *chance.sample(list(MEASURES.values()), 4)),
            "floor": chance.choice((None, 2)),
        }
        for name, value in chosen.items():
            object.__setattr__(self, name, value)

    def pipeline(self, name: str, folder: Path, log: str, to: str = "") -> Pipeline:
        """The definition, under a name with a store and a checkpoint of its own."""
        made = Pipeline(
            name,
            log=log,
            to=to or f"sqlite:{folder / name}.db",
            checkpoint=str(folder / f"{name}.check"),
            buckets=self.buckets,
        )
        lateness = {"late": "correct", "lateness": "45 seconds"} if self.late == "correct" else {"late": self.late}
        numbers = {"sequence": ("who", "nth")} if self.numbered else {}
        clicks = made.stream("clicks", CLICK, time="at", delay="20 seconds", **numbers, **lateness)  # type: ignore[arg-type]
        some = clicks if self.floor is None else clicks.where(f"amount > {self.floor}")
        window = tumbling("at", "1 minute")
        made.view("per_minute", some.group_by("page", window).agg(**texts(self.measures)))
        made.view("closed", clicks.group_by("page", window).agg(n="count(*)", total="sum(amount)"), emit="final")
        per_user = clicks.group_by("user").agg(n="count(*)", total="sum(amount)")
        made.view("by_user", per_user.where("n > 3").select("user", "n * 10 AS ten", "total"))
        made.view("sizes", per_user.group_by("n").agg(users="count(*)", top="max(total)"))
        made.view("big", clicks.where("amount > 9").select("user", "upper(page) AS page", "amount"))
        notes = made.stream("notes", "line string", codec="text")
        made.view("lines", notes.where("line <> ''").group_by("line").agg(n="count(*)"))
        users = made.table("users", "id long, country string", key="id")
        made.view("people", users)
        made.view("countries", users.group_by("country").agg(n="count(*)", eldest="min(id)"))
        return made


def texts(measures: Sequence[Aggregation]) -> dict[str, str]:
    """Aggregates as ``agg`` takes them."""
    written = {each.name: f"{each.function}({', '.join(each.arguments) or '*'})" for each in measures}
    return {name: text.replace("count_distinct(", "count(DISTINCT ") for name, text in written.items()}


class Supply:
    """Random records: in order more or less, some late, repeated, from the future, empty or nonsense."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = BEGIN
        self.numbers: Counter[str] = Counter()
        self.sent: list[Event] = []

    def clicks(self, count: int) -> list[Event]:
        """Some clicks."""
        return [self._click() for _ in range(count)]

    def _click(self) -> Event:
        chance = self.chance
        user = chance.choice((*range(8), None))
        key = str(user).encode()
        kind = chance.random()
        if kind < 0.06:
            return Event(
                chance.choice((b"nonsense", b'{"user": "x"}', b'{"user": 1}', b"\xff\xfe", None, b"[]")), key=key
            )
        if kind < 0.12 and self.sent:
            return chance.choice(self.sent)
        self.clock += timedelta(milliseconds=chance.randrange(4000))
        at = self.clock - timedelta(seconds=chance.choice((0, 0, 0, 5, 15, 50, 200)))
        if kind > 0.97:
            at = datetime(2900, 1, 1, tzinfo=UTC)
        who = str(user)  # one producer writes to one partition
        self.numbers[who] += 1
        value = {
            "user": user,
            "page": chance.choice(PAGES),
            "amount": chance.choice((None, round(chance.uniform(0, 10), 2), 0.1, 1e15)),
            "at": at.isoformat(),
            "who": who,
            "nth": None if chance.random() < 0.1 else self.numbers[who],
        }
        self.sent.append(Event(json.dumps(value).encode(), key=key))
        return self.sent[-1]

    def notes(self, count: int) -> list[Event]:
        """Some lines of text."""
        return [self._note() for _ in range(count)]

    def _note(self) -> Event:
        line = self.chance.choice((b"a", "é\n".encode(), b"", "日本".encode(), b"no \xff text", None))
        return Event(line, key=self.chance.choice((None, b"\xff\xfe")))

    def users(self, count: int) -> list[Event]:
        """Some upserts and tombstones."""
        return [self._user() for _ in range(count)]

    def _user(self) -> Event:
        number = self.chance.randrange(10)
        key = str(number).encode()
        kind = self.chance.random()
        if kind < 0.2:
            return Event(None, key=key)
        if kind < 0.25:
            return Event(self.chance.choice((b"{", b'{"id": "x"}')), key=key)
        country = self.chance.choice(("de", "fr", None))
        return Event(json.dumps({"id": number, "country": country}).encode(), key=key)


def expected(
    shop: Shop, pipeline: Pipeline, log: Log
) -> tuple[dict[str, Counter[Any]], dict[tuple[str, int], Counter[str]]]:
    """What every view holds when everything in the log is done, and how many records of each partition met which fate."""
    with open_writer(pipeline.to) as store:
        beats = [told.beat for told in store.heartbeats(pipeline.name)]
    judges: dict[str, Judge] = {}
    records: dict[str, list[Rec]] = {}
    for relation in (*pipeline.streams.values(), *pipeline.tables.values()):
        source = source_of(relation.node)
        found = [decoded(record, source, pipeline.name) for record in read_all(log, source.topic)]
        records[source.name] = found
        judges[source.name] = Judge(source, len(log.bounds(source.topic)))
        judges[source.name].batch(found, [beat for beat in beats if beat.topic == source.topic])
    clicks = [record.values for record in judges["clicks"].admitted]
    some = (
        clicks
        if shop.floor is None
        else [row for row in clicks if row["amount"] is not None and row["amount"] > shop.floor]
    )
    per_user = reduce(clicks, ["user"], [COUNT, TOTAL])
    views: dict[str, Counter[Any]] = {
        "per_minute": reduce(some, ["page"], shop.measures, MINUTE),
        "closed": reduce(clicks, ["page"], [COUNT, TOTAL], MINUTE, judges["clicks"].mark),
        "by_user": Counter((user, n * 10, total) for user, n, total in per_user if n > 3),
        "sizes": reduce(
            [{"n": n, "total": total} for _, n, total in per_user],
            ["n"],
            [Aggregation("users", "count", ()), Aggregation("top", "max", ("total",))],
        ),
        "big": Counter(
            (row["user"], row["page"].upper() if row["page"] is not None else None, row["amount"])
            for row in clicks
            if row["amount"] is not None and row["amount"] > 9
        ),
        "lines": reduce([r.values for r in judges["notes"].admitted if r.values["line"]], ["line"], [COUNT]),
    }
    people = latest(judges["users"].admitted, ["id"])
    views["people"] = Counter((row["id"], row["country"]) for row in people)
    views["countries"] = reduce(people, ["country"], [COUNT, Aggregation("eldest", "min", ("id",))])
    if shop.late == "route":
        names = ("user", "page", "amount", "at", "who", "nth")
        views["clicks_late"] = Counter(tuple(r.values[name] for name in names) for r in judges["clicks"].late)
    fates: dict[tuple[str, int], Counter[str]] = {}
    for name, judge in judges.items():
        for (partition, _), (verdict, _) in judge.verdicts.items():
            fates.setdefault((name, partition), Counter())[verdict] += 1
    return views, fates


def decoded(record: Record, source: Source, pipeline: str) -> Rec:
    """A record as admission takes it."""
    made = Rec(0, record.partition, record.offset, record.appended * 1000)
    if record.key is not None and record.key.startswith(b"millstream.heartbeat."):
        beat = json.loads(record.value or b"{}")
        ours = beat["pipeline"] in (None, pipeline)
        made.beat = NEVER if not ours else (1 << 62) if beat["time"] is None else beat["time"]
    elif source.kind == "table":
        _decode_row(record, made)
    elif source.codec == "text":
        try:
            made.values = {"line": (b"\xff" if record.value is None else record.value).decode()}
        except ValueError:
            made.bad = "not text"
    else:
        _decode_click(record, made)
    return made


def _decode_click(record: Record, made: Rec) -> None:
    try:
        value = json.loads((record.value or b"").decode())
        wrong = not isinstance(value, dict) or not isinstance(value.get("user"), int | None)
    except ValueError:
        wrong = True
    if wrong:
        made.bad = "not what was declared"
        return
    made.values = {name: value.get(name) for name in ("user", "page", "amount", "at", "who", "nth")}
    if made.values["at"] is None:
        made.bad = "no time"
    else:
        made.values["at"] = datetime.fromisoformat(made.values["at"])


def _decode_row(record: Record, made: Rec) -> None:
    if record.value is None:
        made.deleted, made.values = True, {"id": int(record.key or b"")}
        return
    try:
        made.values = json.loads(record.value)
        made.bad = None if isinstance(made.values["id"], int) else "not a number"
    except ValueError:
        made.bad = "not JSON"


def stored(pipeline: Pipeline) -> dict[str, Counter[Any]]:
    """Every view as rows with their multiplicity, without where they came from."""
    found = {view.name: rows_of(view) for view in pipeline.views.values()}
    with open_reader(pipeline.to) as store:
        for view in store.views():
            if view.name not in found:
                found[view.name] = _bag(store.table(view.name))
    return found


def rows_of(view: View) -> Counter[Any]:
    """A view as rows with their multiplicity."""
    return _bag(view.to_arrow())


def _bag(table: Any) -> Counter[Any]:
    names = [name for name in table.column_names if not name.startswith("_")]
    return Counter(hashable(tuple(row[name] for name in names)) for row in table.to_pylist())
