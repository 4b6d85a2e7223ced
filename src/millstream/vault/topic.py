"""What of a topic's records is sealed: whose they are, which fields are personal, and which of those get a pseudonym beside them.

Invariant: an event leaves with every personal field sealed, or not at all. A record that would say in its key or its headers what a field seals is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from millstream.errors import BadEvent, ConfigError, SealBroken
from millstream.event import Event
from millstream.vault.keys import Key, Keys, Subject
from millstream.vault.pseudonym import SUFFIX, pseudonym
from millstream.vault.seal import ERASED, GONE, Origin, is_token, open_token, parse, seal

Value = dict[str, Any]
_KIND = re.compile(r"\w{1,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is sealed of a topic; ``domains`` are the domains of the fields that have pseudonyms."""

    topic: str
    kind: str
    field: str
    """The field that says whose record it is."""
    personal: tuple[str, ...]
    domains: Mapping[str, str]


def declare(
    topic: str, subject: Mapping[str, str], personal: Sequence[str], pseudonyms: Sequence[str] | Mapping[str, str] = ()
) -> Declaration:
    """Say what is sealed of a topic; ConfigError if it does not hold together.

    >>> declare("orders", {"user": "user_id"}, ["email"], ["email"]).domains
    {'email': 'email'}
    """
    what = f"sealed topic {topic}"
    if (
        not isinstance(subject, Mapping)
        or len(subject) != 1
        or not all(isinstance(each, str) for each in (*subject, *subject.values()))
    ):
        raise ConfigError(
            f"{what}: expected one kind of subject and its field; found {subject!r}",
            hint='subject = {user = "user_id"}',
        )
    if isinstance(personal, str) or not personal or len(set(personal)) < len(personal):
        raise ConfigError(
            f"{what}: expected personal fields, each once; found {personal!r}", hint='personal = ["email"]'
        )
    if isinstance(pseudonyms, str):
        raise ConfigError(
            f"{what}: expected pseudonyms to be fields; found {pseudonyms!r}", hint='pseudonyms = ["email"]'
        )
    domains = dict(pseudonyms) if isinstance(pseudonyms, Mapping) else {each: each for each in pseudonyms}
    if unknown := [each for each in domains if each not in personal]:
        raise ConfigError(
            f"{what}: a pseudonym of {unknown[0]}, which is not among the personal fields {', '.join(personal)}"
        )
    if taken := [each for each in domains if f"{each}{SUFFIX}" in personal]:
        raise ConfigError(
            f"{what}: {taken[0]}{SUFFIX} is a personal field already, and would be the pseudonym of {taken[0]}"
        )
    ((kind, field),) = subject.items()
    if not _KIND.fullmatch(kind):
        raise ConfigError(f"{what}: expected a kind of subject of 1 to 63 letters, digits and _; found {kind!r}")
    return Declaration(topic, kind, field, tuple(personal), domains)


class TopicSeal:
    """Seals the events of one topic. Call it with an event, or give it to a :class:`~millstream.Producer` as ``seal``.

    The first event of a subject makes its key, which is one durable commit; :meth:`events` makes the keys of many in one.
    """

    def __init__(self, vault: Keys, said: Declaration) -> None:
        self._vault, self.said = vault, said

    def __call__(self, event: Event) -> Event:
        """The event with its personal fields sealed; BadEvent if that cannot be. A tombstone stays one."""
        (sealed,) = self.events([event])
        return sealed

    def events(self, events: Iterable[Event]) -> list[Event]:
        """Events with their personal fields sealed."""
        given = [(event, None if event.value is None else self._read(event.value)) for event in events]
        with self._vault.at_once():
            keys = self._vault.of(each for _, value in given if value is not None and (each := self._whose(value)))
            return [event if value is None else self._sealed(event, value, keys) for event, value in given]

    def value(self, value: Mapping[str, Any]) -> Value:
        """A record's fields with the personal ones sealed."""
        subject = self._whose(value)
        return self._fields(value, self._vault.of([subject]).get(subject) if subject else None)

    def line(self, text: bytes) -> bytes:
        """A line of JSON with the personal fields sealed."""
        return msgspec.json.encode(self.value(self._read(text)))

    def prepare(self, lines: Iterable[bytes]) -> None:
        """Make the keys that lines of JSON will need, all of them in one commit; what is wrong with a line is told when it is sealed."""
        subjects: list[Subject] = []
        for text in lines:
            with suppress(BadEvent):
                if subject := self._whose(self._read(text)):
                    subjects.append(subject)
        self._vault.of(subjects)

    def pseudonym(self, field: str, value: Any) -> str:
        """What stands for a value of a field, for keys of records."""
        if field not in self.said.domains:
            raise ConfigError(
                f"sealed topic {self.said.topic}: {field} has no pseudonym",
                hint=f'pseudonyms = ["{field}"] gives it one',
            )
        return pseudonym(self._vault, self.said.domains[field], value)

    def reveal(self, value: Mapping[str, Any], where: str = "") -> Value:
        """A record's fields, those that were sealed in readable form or ``erased``; SealBroken if a token does not belong there."""
        with self._vault.at_once():
            return self._revealed(value, where)

    def _revealed(self, value: Mapping[str, Any], where: str) -> Value:
        shown, keys = dict(value), dict[str, bytes]()
        for field in self.said.personal:
            text = value.get(field)
            if not isinstance(text, str) or not is_token(text):
                continue
            what = f"{where}{' ' if where else ''}{self.said.topic}.{field}"
            found = open_token(self._vault, text, {Origin(self.said.topic, field)}, what)
            shown[field] = ERASED if found is GONE else found
            if found is not GONE:
                keys[what] = parse(text).key
        subject = self._subject(shown)
        for what, key in keys.items():
            if subject is not None and self._vault.id_of(subject) != key:
                raise SealBroken(
                    f"{what}: found a token that was sealed for another {self.said.kind} than that of its record",
                    hint="it was moved here from another record: look for who wrote this one",
                )
        return shown

    def _read(self, text: bytes) -> Value:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadEvent(f"sealed topic {self.said.topic}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise BadEvent(f"sealed topic {self.said.topic}: found {type(value).__name__}, expected an object")
        return value

    def _subject(self, value: Mapping[str, Any]) -> Subject | None:
        found = value.get(self.said.field)
        if isinstance(found, bool) or not isinstance(found, str | int):
            return None
        return Subject(self.said.kind, str(found))

    def _whose(self, value: Mapping[str, Any]) -> Subject | None:
        """Whose record it is; None where it has nothing to seal."""
        if all(value.get(each) is None for each in self.said.personal):
            return None
        subject = self._subject(value)
        if subject is None:
            raise BadEvent(
                f"sealed topic {self.said.topic}: expected text or a whole number in {self.said.field}, which says whose record it is;"
                f" found {type(value.get(self.said.field)).__name__}",
                hint="a record with personal fields must say whose it is: no key would ever erase it",
            )
        return subject

    def _sealed(self, event: Event, value: Value, keys: Mapping[Subject, Key]) -> Event:
        subject = self._whose(value)
        self._refuse_plain(event, value)
        return event._replace(value=msgspec.json.encode(self._fields(value, keys[subject] if subject else None)))

    def _fields(self, value: Mapping[str, Any], key: Key | None) -> Value:
        sealed = dict(value)
        for field in self.said.personal:
            if field not in value:
                continue
            plain = value[field]
            if plain is not None and key is not None:
                sealed[field] = seal(self._vault, key, Origin(self.said.topic, field), plain)
            if field in self.said.domains:
                name = f"{field}{SUFFIX}"
                if name in value:
                    raise BadEvent(
                        f"sealed topic {self.said.topic}: there is a field {name} already, where the pseudonym of {field} goes"
                    )
                sealed[name] = None if plain is None else self.pseudonym(field, plain)
        return sealed

    def _refuse_plain(self, event: Event, value: Value) -> None:
        """Refuse an event that says beside its value what a field seals."""
        beside = {data: f"header {name}" for name, data in event.headers} | dict.fromkeys(_texts(event.key), "key")
        whose = str(value.get(self.said.field)).encode() if self.said.field not in self.said.personal else None
        for field in self.said.personal:
            plain = value.get(field)
            if isinstance(plain, str) and plain and (text := plain.encode()) != whose and text in beside:
                raise BadEvent(
                    f"sealed topic {self.said.topic}: the record's {beside[text]} is what its field {field} seals",
                    hint=f'make it of the pseudonym: seal.pseudonym("{field}", …)',
                )


def _texts(key: bytes | None) -> list[bytes]:
    """What a record's key says: itself, and the texts in it where it is an object of several columns."""
    if key is None or key[:1] != b"{":
        return [key] if key else []
    try:
        columns = msgspec.json.decode(key, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return [key]
    return [key, *(each.encode() for each in columns.values() if isinstance(each, str))]
