"""Avro behind the id of its schema in a registry, as Spark SQL: each value by the schema it was written by, resolved to ours.

The ids are those that the subject has when a run begins. A record of another one stops the run: a later version is known to the
next start, and nothing is read by a guess.
"""

from __future__ import annotations

from millstream.errors import PlanError
from millstream.framed import HEAD
from millstream.registry import Registry
from millstream.relation.nodes import Source

OUTER = "millstream_outer"


def enclosed(schema: str) -> str:
    """The schema of a record whose one field, ``it``, has this one.

    What cannot be read comes as a record of nulls. In bytes both are the same, and a field that is null tells a failure from
    a record that has only nulls to say.
    """
    return f'{{"type": "record", "name": "{OUTER}", "fields": [{{"name": "it", "type": {schema}}}]}}'


def framed_avro(source: Source) -> str:
    """The expression that turns ``_value`` into a struct; null where there is no frame, or no Avro behind it."""
    subject = source.subject
    if subject is None:
        raise PlanError(f"{source.kind} {source.name}: framed Avro without a registry")
    written = Registry(subject.url, user=subject.user, password=subject.password).avro_of(subject.name)
    number, body = "hex(substring(_value, 2, 4))", f"substring(_value, {HEAD + 1})"
    options = f"map('mode', 'PERMISSIVE', 'avroSchema', {literal(enclosed(source.avro_schema))})"
    cases = " ".join(
        f"WHEN '{known:08X}' THEN from_avro({body}, {literal(enclosed(schema))}, {options}).it"
        for known, schema in written.items()
    )
    why = literal(
        f"{source.kind} {source.name}: this record's schema is none of those that subject {subject.name} had when the run began;"
        " if it was registered since, start the run again; its id is "
    )
    framed = f"length(_value) >= {HEAD} AND startswith(_value, X'00')"
    unknown = f"raise_error(concat({why}, conv({number}, 16, 10)))"
    return f"CASE WHEN {framed} THEN CASE {number} {cases} ELSE {unknown} END END"


def literal(value: str) -> str:
    """A Spark SQL string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
