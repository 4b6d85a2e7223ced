"""Random relations over two streams and a table, random records for them, and what a chain makes of those without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import polars as pl

from millstream import Pipeline, Relation
from millstream.errors import PlanError
from millstream.frame import rows, span
from millstream.kernel.schemas import raw_schemas
from millstream.plan.build import Chain
from millstream.relation.predicate import kinds_of
from millstream.relation.properties import event_time
from millstream.scalar.compile import compile_scalar
from millstream.window import session, sliding, tumbling
from tests.kernel import oracle
from tests.kernel.local import STAMP, Local, Rec, hashable, types_by_name

SECOND = 1_000_000
TYPES: dict[str, dict[str, Any]] = {
    "a": {"k": pl.Int64, "g": pl.String, "v": pl.Float64, "tags": pl.List(pl.String), "at": STAMP},
    "b": {"k": pl.Int64, "w": pl.Float64, "b": pl.Boolean, "at": STAMP},
    "t": {"id": pl.Int64, "name": pl.String},
}
VALUES: dict[str, tuple[Any, ...]] = {
    "k": (0, 1, 1, 2, 3, None),
    "id": (0, 1, 2, 3),
    "g": ("a", "b", "ü", None),
    "name": ("a", "b", None),
    "v": (0.0, -0.0, 1.5, 2.0, float("nan"), None),
    "w": (0.0, 1.5, -3.0, None),
    "b": (True, False, None),
    "tags": (["x", "y"], ["x"], [], None, ["x", None]),
}
LITERALS = {
    "integer": ("0", "1", "2", "-1"),
    "double": ("0", "1.5", "2", "-0.5"),
    "text": ("'a'", "'b'", "'ü'"),
    "boolean": ("true", "false"),
}


def sources() -> dict[str, Relation]:
    pipeline = Pipeline("p")
    late = {"late": "correct", "lateness": "10 seconds"}
    return {
        "a": pipeline.stream("a", "k long, g string, v double, tags array<string>, at timestamp", time="at", delay="5 seconds", **late),  # type: ignore[arg-type]
        "b": pipeline.stream("b", "k long, w double, b boolean, at timestamp", time="at", delay="5 seconds"),
        "t": pipeline.table("t", "id long, name string", key="id"),
    }  # fmt: skip


def condition(chance: Random, relation: Relation, depth: int = 2) -> str:
    """A condition over the columns of a relation whose type is known; most are about one column."""
    if depth and chance.random() < 0.4:
        one, other = (condition(chance, relation, depth - 1) for _ in range(2))
        return chance.choice((f"({one}) AND ({other})", f"{one} AND {other}", f"({one} OR {other})", f"NOT ({one})"))
    kinds = {name: kind for name, kind in kinds_of(relation.node).items() if kind in LITERALS}
    if not kinds:
        return "true"
    name = chance.choice(sorted(kinds))
    found = LITERALS[kinds[name]]
    made = [f"{name} {chance.choice(('=', '<>', '<', '>=', '<=>'))} {chance.choice(found)}", f"{name} IS NOT NULL"]
    if kinds[name] in ("integer", "text"):
        made += [f"{name} IN ({found[0]}, {found[1]})", f"{name} NOT BETWEEN {found[0]} AND {found[1]}"]
    alike = [other for other, kind in kinds.items() if kind == kinds[name] and other != name]
    return chance.choice([*made, *(f"{name} <= {other}" for other in alike[:1])])


def _some(chance: Random, relation: Relation) -> str:
    return chance.choice([name for name in relation.columns if name not in ("tags", "at")])


def _renamed(chance: Random, relation: Relation, mark: str) -> Relation:
    return relation.select(
        *(f"{name} AS {name}{mark}" for name in chance.sample(relation.columns, len(relation.columns)))
    )


def _other(chance: Random, it: dict[str, Relation], mark: str) -> Relation:
    found = _renamed(chance, random_relation(chance, it, chance.randrange(2)), mark)
    return found.where(condition(chance, found)) if chance.random() < 0.3 else found


def _joined(chance: Random, relation: Relation, it: dict[str, Relation]) -> Relation:
    mark = f"_{chance.randrange(100)}"
    how: Any = chance.choice(("inner", "left", "right", "full", "semi", "anti"))
    kind = chance.randrange(4)
    kinds = kinds_of(relation.node)
    keys = [name for name in relation.columns if kinds.get(name.lower()) == "integer"]
    key = chance.choice(keys)
    if kind == 0:
        return relation.join(
            it["t"].select(f"id AS id{mark}", f"name AS name{mark}"),
            f"{key} = id{mark}",
            how,
            as_of=event_time(relation.node),
        )
    other = relation if kind == 1 and "at" not in relation.columns else _other(chance, it, mark)
    if other is relation:
        other = relation.select(*(f"{name} AS {name}{mark}" if name != key else name for name in relation.columns))
        return relation.join(other, key, how)
    theirs = chance.choice([name for name in other.columns if kinds_of(other.node).get(name.lower()) == "integer"])
    on = f"{key} = {theirs}"
    if chance.random() < 0.5:  # a key that both sides share
        other, on = other.select(*(f"{name} AS {key}" if name == theirs else name for name in other.columns)), key
    if kind == 2:
        return relation.join(other, on, how, within=("-10 seconds", "5 seconds"))
    return relation.join(other, on, how, latest=True) if chance.random() < 0.3 else relation.join(other, on, how)


def _step(chance: Random, relation: Relation, it: dict[str, Relation]) -> Relation:
    time = event_time(relation.node)
    one = _some(chance, relation)
    steps: list[Callable[[], Relation]] = [
        lambda: relation.where(condition(chance, relation)),
        lambda: _renamed(chance, relation, chance.choice(("", "_n"))),
        lambda: relation.group_by(one).agg(n="count(*)"),
        lambda: relation.group_by(*{one, _some(chance, relation)}).agg(n="count(*)", m=f"max({one})"),
        lambda: relation.group_by(one, tumbling(time or "", "20 seconds")).agg(n="count(*)"),
        lambda: relation.group_by(one, session(time or "", "5 seconds")).agg(n="count(*)"),
        lambda: relation.group_by(one, sliding(time or "", "5 seconds")).agg(n="count(*)"),
        lambda: relation.distinct(),
        lambda: relation.top(2, by=one, per=_some(chance, relation)),
        lambda: relation.top(2, by=one),
        lambda: relation.over(one, order=time or "").add(before=f"lag({_some(chance, relation)})"),
        lambda: relation.over(one, order=time or "", frame=span("5 seconds")).add(s="count(*)"),
        lambda: relation.over(one, order=_some(chance, relation), frame=rows(1)).add(s="count(*)"),
        lambda: relation.deduplicate(one, chance.choice((None, "10 seconds"))),
        lambda: relation.union(relation.where(condition(chance, relation))),
        lambda: relation.union(_renamed(chance, relation, "_u").select(*(f"{name}_u AS {name}" for name in relation.columns))),
        lambda: relation.explode("tags", as_="tag"),
        lambda: relation.unpivot([*relation.columns], [one], "name", "value"),
        *(3 * [lambda: _joined(chance, relation, it)]),
    ]  # fmt: skip
    return chance.choice(steps)()


def random_relation(chance: Random, it: dict[str, Relation], length: int) -> Relation:
    """A relation of about that many steps; those that do not fit are left out."""
    relation = it[chance.choice(("a", "a", "b", "t"))]
    for _ in range(length):
        with suppress(PlanError, IndexError):
            relation = _step(chance, relation, it)
    return relation


def random_records(chance: Random, chain: Chain, partitions: int) -> list[list[Rec]]:
    """Batches of records of all sources; time goes on, some are late, tables have tombstones."""
    following: Counter[tuple[int, int]] = Counter()
    made, now = [], 1000 * SECOND
    for _ in range(chance.randint(2, 5)):
        records = []
        for _ in range(chance.randint(1, 14)):
            feed = chance.choice(chain.feeds)
            source = feed.source
            values = {each.name: chance.choice(VALUES[each.name]) for each in source.columns if each.name in VALUES}
            at = now + chance.randrange(-15, 10) * SECOND
            place = feed.number, (values["id"] % partitions if source.kind == "table" else chance.randrange(partitions))
            if source.time is not None:
                values["at"] = oracle.stamp(at)
            gone = source.kind == "table" and chance.random() < 0.2
            values |= {"name": None} if gone else {}
            records.append(Rec(*place, following[place], now + 60 * SECOND, values, deleted=gone, stamp=at))
            following[place] += 1
        made.append(records)
        now += chance.choice((0, 3, 8, 15, 30)) * SECOND
    return made


def renumbered(batch: Sequence[Rec], one: Chain, other: Chain) -> list[Rec]:
    """The records of one chain for another, whose feeds may have other numbers."""
    numbers = {feed.source.name: feed.number for feed in other.feeds}
    names = {feed.number: feed.source.name for feed in one.feeds}
    return [Rec(**{**vars(each), "feed": numbers[names[each.feed]]}) for each in batch]


class Run:
    """A chain at work. ``views`` are its views as Spark would finish them: conditions and columns after the last kernel."""

    def __init__(self, chain: Chain, partitions: int, seed: int = 0) -> None:
        self.chain = chain
        self.local = Local(chain, partitions, types_by_name(chain, TYPES), seed)
        self.schemas = raw_schemas(chain, self.local._schemas())

    def views(self) -> dict[str, Counter[tuple[Any, ...]]]:
        return {output.name: self._finished(output.name) for output in self.chain.outputs}

    def _finished(self, name: str) -> Counter[tuple[Any, ...]]:
        output = next(each for each in self.chain.outputs if each.name == name)
        schema = {column: kind for column, kind in self.schemas[name].items() if column in output.columns}
        found = self.local.view(name)
        cut = [row[: len(schema)] for row in found]
        plain = [
            [float("nan") if value == "NaN" else list(value) if isinstance(value, tuple) else value for value in row]
            for row in cut
        ]
        frame = pl.DataFrame(plain, schema=schema, orient="row", strict=False).with_columns(
            pl.Series("_n", list(found.values()), dtype=pl.Int64)
        )
        for each in output.where:
            frame = frame.filter(_scalar(each, schema).fill_null(False))
        chosen = frame.select(*(_scalar(each.expression, schema).alias(each.name) for each in output.select), "_n")
        counted: Counter[tuple[Any, ...]] = Counter()
        for row in chosen.iter_rows():
            counted[hashable(row[:-1])] += row[-1]
        return counted


def _scalar(sql: str, schema: dict[str, Any]) -> pl.Expr:
    if sql in schema:
        return pl.col(sql)
    scalar = compile_scalar(sql, schema)
    assert scalar is not None, sql
    return scalar.value
