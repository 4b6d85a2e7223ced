"""Which columns of a source are decoded: those that something uses, and of a struct the fields that something uses.

What nobody looks at is not looked at, so it cannot make a record malformed either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from millstream.plan.chain import Feed
from millstream.relation import expression
from millstream.relation.clauses import HEADERS
from millstream.relation.nodes import Column, Source
from millstream.relation.schema import fields_of


def reads_headers(feeds: Iterable[Feed]) -> bool:
    """Whether something uses the headers of a record."""
    return any(path[0] == HEADERS for feed in feeds for path in _used(feed))


def _used(feed: Feed) -> set[tuple[str, ...]]:
    """The columns, and fields of them, that the expressions of a feed name."""
    source = feed.source
    texts = [text for each in feed.expressions for text in (each.expression, each.guard) if text]
    if source.time is not None and source.time.said:
        texts.append(source.time.said)
    if source.sequence is not None:
        texts += [source.sequence.producer, source.sequence.number]
    return {path for text in texts for path in expression.paths(text)}


def narrowed(feed: Feed) -> Source:
    """The source with the columns that are decoded, in their order; there is at least one."""
    source, used = feed.source, _used(feed)
    if source.kind == "table":
        used |= {(name.lower(),) for name in source.key}
    if source.time is not None:
        used |= {
            (name.lower(),) for name in (source.time.column, source.time.sent, source.time.received) if name is not None
        }
    kept = [_narrowed(column, used) for column in source.columns]
    columns = tuple(column for column in kept if column is not None) or source.columns[:1]
    return replace(source, columns=columns)


def _narrowed(column: Column, used: set[tuple[str, ...]]) -> Column | None:
    mine = {path for path in used if path[0] == column.name.lower()}
    if not mine:
        return None
    fields = fields_of(column.type)
    names = {path[1] for path in mine if len(path) > 1}
    if not fields or any(len(path) == 1 for path in mine):
        return column
    kept = [field for field in fields if field.name.lower() in names]
    inner = ", ".join(f"{_quoted(field.name)}: {field.type}" for field in kept)
    return Column(column.name, f"struct<{inner}>") if kept else column


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
