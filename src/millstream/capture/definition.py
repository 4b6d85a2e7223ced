"""What a pipeline says of the captures that fill its topics: data, which nothing opens and which is no part of its fingerprint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.capture.control import check_name
from millstream.capture.following import OnChange
from millstream.capture.opening import is_address
from millstream.capture.outbox import Outbox
from millstream.capture.transacting import TRUNCATE
from millstream.capture.writing import Refused
from millstream.errors import ConfigError, PlanError
from millstream.secret import check_address, redacted


@dataclass(frozen=True, slots=True)
class CaptureDefinition:
    """A capture as it is defined: its name, the database, the tables, and how."""

    name: str
    source: str
    tables: tuple[str, ...]
    partitions: int = 1
    refused: Refused = "stop"
    on_change: OnChange = "stop"
    allow: tuple[str, ...] = ()
    outbox: Outbox | None = None
    truncate: int = TRUNCATE


class Captures(Protocol):
    """What has captures: a pipeline."""

    captures: dict[str, CaptureDefinition]


def define_capture(
    self: Captures,
    name: str,
    source: str,
    tables: Sequence[str],
    *,
    partitions: int = 1,
    refused: Refused = "stop",
    on_change: OnChange = "stop",
    allow: Sequence[str] = (),
    outbox: str | None = None,
    outbox_topics: Sequence[str] = (),
    truncate: int = TRUNCATE,
) -> CaptureDefinition:
    """Say which tables of a database this pipeline's topics follow; ``millstream capture start FILE`` captures them.

    Their topics are ``NAME.SCHEMA.TABLE``; ``millstream capture columns`` prints how each is declared as a table. Nothing is opened here.

    :param name: what the capture is called, and its topics begin with
    :param source: the database, ``postgresql://…``, ``mysql://…``, ``mariadb://…``, ``sqlite:PATH`` or ``debezium:FILE.properties``, secrets by reference
    :param tables: their names
    :param partitions: how many new topics get
    :param refused: ``"stop"``, or ``"dead_letter"`` for rows that a topic does not take
    :param on_change: ``"stop"`` or ``"continue"`` when a table loses a column or one has another type
    :param allow: what else the database may do, as its page says
    :param outbox: a table whose inserts are events for other topics
    :param outbox_topics: patterns of the topics that it may name
    :param truncate: how many rows may be deleted at once where a table is emptied; more stop the capture
    :raises PlanError: if something of it does not hold together

    >>> from millstream import Pipeline
    >>> shop = Pipeline("shop")
    >>> shop.capture("shop", "sqlite:shop.db", ["users"]).tables
    ('users',)
    """
    try:
        check_name(name)
        if not is_address(source):
            raise ConfigError(f"capture {name}: found {redacted(str(source))!r}, expected the address of a database")
        if not source.startswith(("sqlite:", "debezium:")):
            check_address("capture", source)
        if isinstance(tables, str) or not [*tables, *([outbox] if outbox else [])]:
            raise ConfigError(f"capture {name}: found tables {tables!r}, expected a list of names")
        if name in self.captures:
            raise ConfigError(f"capture {name}: there is one of that name already")
        routed = Outbox(outbox, tuple(outbox_topics)) if outbox else None
    except ConfigError as error:
        raise PlanError(error.message, hint=error.hint) from error
    made = CaptureDefinition(
        name, source, tuple(tables), partitions, refused, on_change, tuple(allow), routed, truncate
    )
    self.captures[name] = made
    return made
