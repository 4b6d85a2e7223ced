"""How a pipeline declares a captured table, in Python and in SQL."""

from __future__ import annotations

import keyword
import re

from millstream.capture.contract import Table
from millstream.capture.following import topic_of

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def in_python(name: str, table: Table) -> str:
    """The declaration as a call of :meth:`Pipeline.table`.

    >>> from millstream.capture.contract import Column
    >>> users = Table("public", "users", (Column("id", "int8", "bigint"), Column("email", "text", "string")), ("id",))
    >>> print(in_python("shop", users))
    users = shop.table(
        "users",
        "id bigint, email string",
        key="id",
        topic="shop.public.users",
        codec="debezium",
    )
    """
    called = _identifier(table.name)
    key = repr(table.key[0]) if len(table.key) == 1 else repr(list(table.key))
    lines = [
        f"{called} = {_identifier(name)}.table(",
        f'    "{called}",',
        f'    "{", ".join(_columns(table))}",',
        f"    key={key},".replace("'", '"'),
        f'    topic="{topic_of(name, table)}",',
        '    codec="debezium",',
        ")",
    ]
    return "\n".join(lines)


def in_sql(name: str, table: Table) -> str:
    """The declaration as CREATE TABLE.

    >>> from millstream.capture.contract import Column
    >>> print(in_sql("shop", Table("", "users", (Column("id", "INTEGER", "bigint"),), ("id",))))
    CREATE TABLE users (
      id BIGINT,
      PRIMARY KEY (id)
    ) WITH (topic = 'shop.users', format = 'debezium');
    """
    columns = [f"{_quoted(column.name)} {column.type.upper()}" for column in table.columns]
    key = f"PRIMARY KEY ({', '.join(_quoted(each) for each in table.key)})"
    inside = ",\n  ".join([*columns, key])
    return f"CREATE TABLE {_identifier(table.name)} (\n  {inside}\n) WITH (topic = '{topic_of(name, table)}', format = 'debezium');"


def _columns(table: Table) -> list[str]:
    return [f"{_quoted(column.name)} {column.type}" for column in table.columns]


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"`{name}`"


def _identifier(name: str) -> str:
    """A name that Python and SQL take."""
    found = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{found}" if found[:1].isdigit() or keyword.iskeyword(found) else found
