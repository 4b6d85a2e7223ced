"""The form of a topic's records, by all definitions that read it: whose a record is, and what is left of it.

What is left decides what becomes of *other* records: the watermark of the partition and the numbers of producers. So a column that any
definition needs for that stays, and all else goes. A record that no definition can decode tells neither; of it nothing is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from millstream.codec import Avro, Codec
from millstream.erase.pseudonym import Pseudonyms
from millstream.errors import CodecError, ConfigError, NotSupported, PlanError
from millstream.framed import HEAD, Confluent, frame
from millstream.log.erased import MEMBER
from millstream.registry import Registry
from millstream.relation.operators.source import Source
from millstream.relation.personal import needed, producer_of, told_by

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Subject(NamedTuple):
    """Somebody: a kind, and what identifies one of it, as text."""

    kind: str
    name: str


@dataclass(frozen=True)
class TopicForm:
    """How the records of one topic are read. ``sources`` are all definitions of it."""

    topic: str
    sources: tuple[Source, ...]

    def __post_init__(self) -> None:
        told = {name.lower(): each for each in self.sources if each.personal for name in told_by(each.personal)}
        for source in self.sources:
            for name in needed(source):
                alone = name.lower() in told and name == producer_of(source)
                if name.lower() in told and not alone:
                    other = told[name.lower()]
                    raise PlanError(
                        f"topic {self.topic}: {source.kind} {source.name} (at {source.place}) takes its time or its number from"
                        f" column {name}, which is personal in {other.kind} {other.name} (at {other.place})",
                        hint="of a record that is forgotten it must stay; leave it out of personal=",
                    )
        if any(each.codec == "debezium-avro" for each in self.sources):
            raise NotSupported(f"topic {self.topic}: records of codec debezium-avro are not erased by this version")
        if len({each.codec for each in self.sources}) > 1:
            raise ConfigError(
                f"topic {self.topic}: definitions read it by different codecs",
                hint="erase with those of one codec; the others cannot be right",
            )

    @property
    def codec(self) -> str:
        """How its values are written."""
        return self.sources[0].codec

    @cached_property
    def subjects(self) -> dict[str, tuple[str, str]]:
        """Kind of subject → its column and the column's type."""
        found = {}
        for source in self.sources:
            types = {column.name: column.type for column in source.columns}
            for kind, name in source.personal.subjects if source.personal else ():
                found[kind] = name, types[name]
        return found

    @cached_property
    def kept(self) -> dict[str, str]:
        """The columns that stay, with their types."""
        types = {column.name: column.type for each in self.sources for column in each.columns}
        return {name: types[name] for each in self.sources for name in needed(each)}

    @cached_property
    def personal(self) -> frozenset[str]:
        """The columns that say something of somebody besides the subject's own."""
        return frozenset(name for each in self.sources if each.personal for name in each.personal.columns)

    @property
    def is_stream(self) -> bool:
        """Whether some definition reads facts, so that something must be left of a record."""
        return any(each.kind == "stream" for each in self.sources)

    def owners(self, key: bytes | None, value: bytes | None) -> frozenset[Subject] | None:
        """Whose a record is; None where it does not decode, so that nobody knows."""
        rows = self._rows(value)
        if rows is None:
            return None
        found = set()
        members = _members(key, [each.key for each in self.sources if each.key])
        for kind, (name, column_type) in self.subjects.items():
            texts = {_text(row[name]) for row in rows if row.get(name) is not None}
            texts |= {members[name]} if not texts and name in members else set()
            found |= {Subject(kind, _plain(text, column_type)) for text in texts if text is not None}
        return frozenset(found)

    def blank(self, value: bytes | None, pseudonyms: Pseudonyms) -> bytes | None:
        """What is left of a record's value; None where that is nothing."""
        rows = self._rows(value) if self.is_stream else None
        if not rows or value is None:
            return None
        row, left = rows[0], dict[str, Any]()
        kinds = {name: kind for kind, (name, _) in self.subjects.items()}
        for name, column_type in self.kept.items():
            if name not in row:
                continue
            if (name in kinds or name in self.personal) and (text := _text(row[name])) is not None:
                left[name] = pseudonyms.value_of(kinds.get(name, name), text, column_type)
            else:
                left[name] = row[name]
        return self._written(left)

    def without_fields(
        self, key: bytes | None, value: bytes | None, pseudonyms: Pseudonyms
    ) -> tuple[bytes | None, bytes | None]:
        """A record's key and value with pseudonyms for its subjects, and nothing in its personal columns."""
        owners = self.owners(key, value) or frozenset()
        values = {each: pseudonyms.value_of(each.kind, each.name, self.subjects[each.kind][1]) for each in owners}
        return self._key_with(key, values), value if value is None else self._changed(value, values)

    def personal_texts(self, value: bytes | None) -> set[str]:
        """What stands in the personal columns of a record, as text."""
        found = (_text(row[name]) for row in self._rows(value) or () for name in self.personal if name in row)
        return {text for text in found if text is not None}

    # values

    def _rows(self, value: bytes | None) -> list[Mapping[str, Any]] | None:
        """The rows in a value: one, of Debezium's envelope those before and after; none without a value; None if it does not decode."""
        if value is None:
            return []
        try:
            if self.codec in ("json", "confluent-json", "debezium"):
                document = value[HEAD:] if self.codec == "confluent-json" else value
                row: Mapping[str, Any] = _OBJECT.decode(document)
                return _in_envelope(row) if self.codec == "debezium" else [row]
            if self.codec == "text":
                return [{self.sources[0].columns[0].name: value.decode()}]
            return [self._avro.decode(value)]
        except (ValueError, RecursionError, CodecError, EOFError):
            return None

    def _written(self, row: Mapping[str, Any]) -> bytes:
        if self.codec in ("json", "confluent-json", "debezium"):
            made = msgspec.json.encode({MEMBER: True, **row})
            return frame(0, made) if self.codec == "confluent-json" else made
        if self.codec == "text":
            return str(row.get(self.sources[0].columns[0].name, "")).encode()
        return self._avro.encode(_filled(json.loads(self.sources[0].avro_schema), row))

    def _changed(self, value: bytes, values: Mapping[Subject, str | int]) -> bytes:
        """A value with other subjects, and without personal data."""
        columns = {self.subjects[each.kind][0]: new for each, new in values.items()}
        gone = dict.fromkeys(self.personal) | columns

        def changed(row: Any) -> Any:
            if not isinstance(row, Mapping):
                return row
            return {name: gone[name] if name in gone and one is not None else one for name, one in row.items()}

        if self.codec == "text":
            return str(gone.get(self.sources[0].columns[0].name) or "").encode()
        if self.codec in ("avro", "confluent-avro"):
            row = changed(self._avro.decode(value))
            return self._avro.encode(_filled(json.loads(self.sources[0].avro_schema), row))
        head, document = (value[:HEAD], value[HEAD:]) if self.codec == "confluent-json" else (b"", value)
        row = _OBJECT.decode(document)
        if self.codec == "debezium":
            return msgspec.json.encode(_each_row(msgspec.json.decode(document), changed))
        return head + msgspec.json.encode(changed(row))

    def _key_with(self, key: bytes | None, values: Mapping[Subject, str | int]) -> bytes | None:
        """A key with pseudonyms in the place of subjects."""
        if key is None:
            return None
        columns = {self.subjects[each.kind][0]: (each.name, new) for each, new in values.items()}
        try:
            found = msgspec.json.decode(key) if key[:1] == b"{" else None
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            made = found.get("payload") if isinstance(found.get("payload"), dict) else found
            assert isinstance(made, dict)  # noqa: S101
            made.update({name: columns[name][1] for name in made if name in columns})
            return msgspec.json.encode(found)
        for before, new in columns.values():
            if key == before.encode() or key == msgspec.json.encode(before):
                return str(new).encode()
        return key

    @cached_property
    def _avro(self) -> Codec:
        source = self.sources[0]
        schema = json.loads(source.avro_schema)
        if source.codec == "confluent-avro" and source.subject is not None:
            at = source.subject
            return Confluent(Registry(at.url, user=at.user, password=at.password), at.name, schema)
        return Avro(schema)


def forms_of(sources: Collection[Source]) -> dict[str, TopicForm]:
    """The form of each topic of which some definition says whose its records are."""
    topics = dict.fromkeys(each.topic for each in sources if each.personal is not None)
    return {topic: TopicForm(topic, tuple(each for each in sources if each.topic == topic)) for topic in topics}


def shows(data: bytes | None, subject: Subject) -> bool:
    """Whether bytes that nobody can decode have somebody's name in them, with nothing of a word around it."""
    if data is None:
        return False
    name = re.escape(subject.name.encode())
    return re.search(rb"(?<![0-9A-Za-z_])" + name + rb"(?![0-9A-Za-z_])", data) is not None


def _text(value: Any) -> str | None:
    """A value as text: of JSON the text of a string, or the number as it is written."""
    if isinstance(value, msgspec.Raw):
        found = bytes(value).strip()
        if found[:1] == b'"':
            return msgspec.json.decode(found, type=str)
        return None if found == b"null" else found.decode()
    return None if value is None else str(value)


def _plain(text: str, column_type: str) -> str:
    """A whole number in the one way to write it."""
    if column_type.lower() == "string" or not re.fullmatch(r"[-+0-9.eE]{1,40}", text):
        return text
    try:
        number = Decimal(text)
        return str(int(number)) if number == int(number) and abs(number) < 1 << 64 else text
    except (ArithmeticError, ValueError):
        return text


def _in_envelope(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "payload" in row and bytes(row["payload"]).strip()[:1] == b"{":
        row = _OBJECT.decode(bytes(row["payload"]))
    return [
        _OBJECT.decode(bytes(row[name]))
        for name in ("after", "before")
        if bytes(row.get(name, b"")).strip()[:1] == b"{"
    ]


def _each_row(envelope: Any, changed: Any) -> Any:
    if isinstance(envelope, dict):
        if isinstance(envelope.get("payload"), dict):
            return {**envelope, "payload": _each_row(envelope["payload"], changed)}
        return {name: changed(each) if name in ("after", "before") else each for name, each in envelope.items()}
    return envelope


def _members(key: bytes | None, keys: Sequence[tuple[str, ...]]) -> dict[str, str]:
    """What a record's key says of the columns that it is made of."""
    if key is None:
        return {}
    if key[:1] == b"{":
        try:
            found = _OBJECT.decode(key)
            if "payload" in found and bytes(found["payload"]).strip()[:1] == b"{":
                found = _OBJECT.decode(bytes(found["payload"]))
            return {name: text for name, each in found.items() if (text := _text(each)) is not None}
        except (ValueError, RecursionError):
            return {}
    try:
        text = msgspec.json.decode(key, type=str) if key[:1] == b'"' else key.decode()
    except ValueError:
        return {}
    return {names[0]: text for names in keys if len(names) == 1}


def _filled(schema: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """A record of an Avro schema with these fields, and nothing in the others."""
    return {
        field["name"]: row[field["name"]] if row.get(field["name"]) is not None else _nothing(field["type"], {})
        for field in schema["fields"]
    }


def _nothing(kind: Any, known: dict[str, Any]) -> Any:
    """The least value of an Avro type: null where there may be none."""
    if isinstance(kind, list):
        return None if "null" in kind else _nothing(kind[0], known)
    if isinstance(kind, dict):
        if "name" in kind:
            known[kind["name"]] = kind
        match kind["type"]:
            case "record":
                return {field["name"]: _nothing(field["type"], known) for field in kind["fields"]}
            case "array":
                return []
            case "map":
                return {}
            case "enum":
                return kind["symbols"][0]
            case "fixed":
                return b"\0" * int(kind["size"])
            case inner:
                return _nothing(inner, known)
    if kind in known:
        return _nothing(known[kind], known)
    return {"null": None, "string": "", "bytes": b"", "boolean": False, "float": 0.0, "double": 0.0}.get(kind, 0)
