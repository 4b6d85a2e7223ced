"""A topic as a stream of facts, or as a table: the bottom of every relation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from millstream.relation import clauses
from millstream.relation.clauses import META_COLUMNS, NOWHERE, Column, Emit, EventTime, Place, Policy
from millstream.relation.kinds import Kind, declared
from millstream.relation.operators.contract import NodeContract, settled_by_time

if TYPE_CHECKING:
    from millstream.relation.nodes import Node


CodecName: TypeAlias = Literal["json", "confluent-json", "text", "avro", "confluent-avro", "debezium", "debezium-avro"]
"""How values are written."""


@dataclass(frozen=True, slots=True)
class Source(NodeContract):
    """A topic: a stream of facts, or a table's changelog (``key`` is its primary key)."""

    tag: ClassVar[str] = "Source"
    kind: Literal["stream", "table"]
    name: str
    topic: str
    columns: tuple[Column, ...]
    codec: CodecName = "json"
    avro_schema: str = ""
    key: tuple[str, ...] = ()
    time: EventTime | None = None
    sequence: clauses.Sequence | None = None
    failed: Policy = "dead_letter"
    """What happens to a record on which an expression fails: it alone is rejected, or it stops the pipeline."""
    subject: clauses.Subject | None = field(default=None, compare=False)
    """Where the writers' schemas of framed Avro are; the same data under another address is no other definition."""
    place: Place = field(default=NOWHERE, compare=False)

    @property
    def in_envelopes(self) -> bool:
        """Whether its values are Debezium's envelopes."""
        return self.codec in ("debezium", "debezium-avro")

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """Its columns, with the one that is computed: its time, where an expression says it."""
        if self.time is None or not self.time.said:
            return self.columns
        return (*self.columns, Column(self.time.column, "timestamp"))

    def input_nodes(self) -> tuple[Node, ...]:
        return ()

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return self

    def output_columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.all_columns)

    def visible(self) -> tuple[str, ...]:
        """Its columns, and what every record has besides."""
        return (*self.output_columns(), *META_COLUMNS)

    def expressions(self, side: int | None = None) -> list[str]:
        return []

    def compared(self, side: int) -> Sequence[str]:
        return ()

    def kinds(self) -> dict[str, Kind]:
        return dict(declared(self.all_columns))

    def lines(self) -> list[str]:
        columns = ", ".join(f"{column.name} {column.written}" for column in self.all_columns)
        key = f" key {', '.join(self.key)}" if self.key else ""
        return [f"{self.kind} {self.name} ({columns}){key}"]

    def is_stream(self) -> bool:
        return self.kind == "stream"

    def is_insert_only(self, emit: Emit = "changes") -> bool:
        return self.kind == "stream"

    def event_time(self) -> str | None:
        return self.time.column if self.time else None

    def settled(self) -> dict[str, timedelta]:
        return settled_by_time(self)

    def natural_key(self) -> tuple[str, ...]:
        return self.key if self.kind == "table" else ()

    def never_null(self) -> frozenset[str]:
        return frozenset(self.key if self.kind == "table" else [self.time.column] if self.time else [])

    def has_kernel(self) -> bool:
        return False

    def is_bounded(self) -> bool:
        return self.kind == "stream"

    def ends(self) -> bool:
        return False

    def condition_below(self, part: str, used: frozenset[str]) -> Sequence[str | None]:
        return ()
