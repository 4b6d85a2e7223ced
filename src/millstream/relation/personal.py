"""Whose the records of a source are, and what of them is personal: checked where it is said.

A record of somebody who is forgotten stays in its place with its times, and with what its verdict depends on. So nothing of that may be
personal, or others would come late, or be repeats, that did not before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.clauses import HEADERS, Personal
from millstream.relation.operators.source import Source
from millstream.relation.source import existing

KIND = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
"""What a kind of subject may be called."""
_IDENTIFIES = ("string", "bigint", "long", "int", "integer", "smallint", "short", "tinyint", "byte")


def personal_of(source: Source, subject: Mapping[str, str] | None, personal: str | Sequence[str]) -> Personal:
    """What a source says of persons."""
    what = f"{source.kind} {source.name}"
    if not subject or not isinstance(subject, Mapping):
        raise PlanError(
            f"{what}: expected subject to say whose a record is; found {subject!r}",
            hint='subject={"user": "user_id"}: a kind of subject, and the column that says which one',
        )
    pairs = []
    for kind, name in subject.items():
        if not isinstance(kind, str) or not KIND.fullmatch(kind):
            raise PlanError(f"{what}: subject: expected a kind of 1 to 63 letters, digits and _; found {kind!r}")
        (found,) = existing(name, source.columns, f"{what}: subject {kind}")
        column = next(each for each in source.columns if each.name == found)
        if column.type.lower() not in _IDENTIFIES:
            raise PlanError(
                f"{what}: subject {kind}: expected text or a whole number; found {found} {column.type}",
                hint="name the column that identifies the subject",
            )
        pairs.append((kind, found))
    columns = existing(personal, source.columns, f"{what}: personal")
    made = Personal(tuple(pairs), columns)
    _refuse_needed(source, made, what)
    return made


def told_by(personal: Personal) -> frozenset[str]:
    """All columns that say something of a person."""
    return frozenset((*(column for _, column in personal.subjects), *personal.columns))


def needed(source: Source) -> tuple[str, ...]:
    """The columns that admission needs of a stream's record, in their order: those of its time, its clock and its number."""
    if source.kind == "table":
        return ()
    names = {column.name.lower(): column.name for column in source.columns}
    used = {path[0].lower() for text in _texts(source) for path in expression.paths(text)}
    return tuple(name for lower, name in names.items() if lower in used)


def producer_of(source: Source) -> str | None:
    """The column that alone is the producer of a stream's numbers; None where it is anything else, or there are no numbers."""
    if source.kind == "table" or source.sequence is None:
        return None
    plain = expression.plain_column(source.sequence.producer)
    return next(
        (each.name for each in source.columns if plain is not None and each.name.lower() == plain.lower()), None
    )


def _texts(source: Source, *, producer: bool = True) -> Iterator[str]:
    """Every expression that a verdict on a stream's record depends on."""
    time, sequence = source.time, source.sequence
    if time is not None:
        yield time.said or expression.quote(time.column)
        yield from (expression.quote(name) for name in (time.sent, time.received) if name is not None)
    if sequence is not None:
        yield sequence.number
        if producer:
            yield sequence.producer


def _refuse_needed(source: Source, personal: Personal, what: str) -> None:
    """Refuse where a record that is forgotten could not be judged as before."""
    if source.kind == "table":
        return
    told = {name.lower() for name in told_by(personal)}
    alone = producer_of(source) is not None or (
        source.sequence is not None and source.sequence.producer.strip() == "_key"
    )
    for text in _texts(source, producer=not alone):
        for path in expression.paths(text):
            if path[0].lower() in told:
                raise PlanError(
                    f"{what}: `{text}` decides when or as which number a record counts, and {path[0]} is personal: of a record that is"
                    " forgotten it must stay",
                    hint="leave it out of personal=, or take time and number from another column",
                )
            if path[0].lower() in (HEADERS, "_key"):
                raise PlanError(
                    f"{what}: `{text}` decides when or as which number a record counts, and of a record that is forgotten {path[0]} goes",
                    hint="put what it says into a column of the value",
                )
