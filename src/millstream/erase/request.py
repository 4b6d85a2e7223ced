"""Taking a request: everything that can be hidden is hidden at once, and what cannot be is named."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from millstream.address import parse_log
from millstream.config import ErasedTopic
from millstream.erase import audit
from millstream.erase.audit import Said
from millstream.erase.blank import Mode, Wish
from millstream.erase.form import Subject, TopicForm, forms_of
from millstream.erase.register import Register, Request, Rule
from millstream.erase.trace import subject_columns
from millstream.errors import ConfigError, EraseError, NotSupported
from millstream.log import Log, open_log
from millstream.pipeline import Pipeline
from millstream.relation.clauses import Column, Personal
from millstream.relation.nodes import Source, source_of, sources_of
from millstream.store import open_writer
from millstream.store.contract import Hidden
from millstream.view import View


@dataclass(frozen=True, slots=True)
class Taken:
    """A request that was taken: what is hidden from now on, which views may still show something, and the audit log's last hash."""

    request: Request
    topics: tuple[str, ...]
    hidden: tuple[str, ...]
    shown: tuple[str, ...]
    head: str


def register_of(log: str) -> Path:
    """Where the register about a log is; NotSupported for one whose records cannot be changed."""
    address = parse_log(log)
    if not address.embedded:
        raise NotSupported(
            f"{log}: records of Kafka cannot be changed where they are, so nobody can be forgotten there",
            hint="the topic's retention and compaction remove them: a tombstone for each key of theirs, in a compacted topic",
        )
    path = Path(address.place).absolute()
    return path.with_name(f"{path.name}.erasures")


def sources_in(pipelines: Iterable[Pipeline]) -> list[Source]:
    """All definitions of topics."""
    return [source_of(each.node) for p in pipelines for each in (*p.streams.values(), *p.tables.values())]


def sources_outside(topics: Mapping[str, ErasedTopic]) -> list[Source]:
    """The definitions of topics that no pipeline reads, as the settings have them."""
    made = Pipeline("settings")
    for number, (topic, said) in enumerate(topics.items()):
        made.stream(
            f"topic_{number}",
            said.schema,
            topic=topic,
            key=said.key,
            codec=said.codec,
            subject=said.subject,
            personal=said.personal,
        )
    return sources_in([made])


def subject_of(text: str) -> Subject:
    """``user=123``."""
    kind, equals, name = text.partition("=")
    if not kind or not equals or not name:
        raise ConfigError(f"subject: found {text!r}, expected KIND=NAME", hint="--subject user=123")
    return Subject(kind, name)


def request(
    pipelines: Sequence[Pipeline], subject: Subject, mode: Mode = "records", topics: Sequence[Source] = ()
) -> Taken:
    """Take a request about somebody, and hide what views show of them; it is erased later, with all others that wait.

    ``topics`` define topics that no pipeline reads.
    """
    log = common_log(pipelines)
    path, forms = register_of(log), forms_of([*sources_in(pipelines), *topics])
    known = topics_of(forms, subject)
    with open_log(log, create=False) as opened, Register(path) as register, register.alone():
        audit.check(opened)
        taken = register.add(Wish(subject, mode))
        register.learn({topic: [_rule(each) for each in form.sources] for topic, form in forms.items()})
        hidden, shown = _hide(pipelines, subject, taken.id)
        head = audit.enter(opened, [Said("requested", taken.id, subject.kind, taken.digest, mode)])
    return Taken(taken, tuple(sorted(known)), tuple(hidden), tuple(shown), head)


def withdraw(pipelines: Sequence[Pipeline], request_id: str) -> Request:
    """Take a request back: what it hid is shown again."""
    log = common_log(pipelines)
    with open_log(log, create=False) as opened, Register(register_of(log), create=False) as register, register.alone():
        found = register.find(request_id)
        if register.step("begun") is not None:
            raise EraseError(
                "an erasure was begun and has not ended, so nothing is withdrawn",
                hint="`millstream erase run FILE…` goes on with it",
            )
        for address in stores_of(pipelines):
            with open_writer(address) as writer:
                writer.unhide([found.id])
        register.settle([found], "withdrawn")
        audit.enter(opened, [Said("withdrawn", found.id, found.kind, found.digest, found.mode)])
    return found


def common_log(pipelines: Sequence[Pipeline]) -> str:
    """The log that all of these read."""
    logs = dict.fromkeys(pipeline.log for pipeline in pipelines)
    if len(logs) != 1:
        raise ConfigError(f"expected pipelines of one log; found {', '.join(logs)}", hint="ask for each log by itself")
    return next(iter(logs))


def topics_of(forms: dict[str, TopicForm], subject: Subject) -> list[str]:
    """The topics that know this kind of subject; ConfigError if none does, or one of them cannot have such a name."""
    found = [topic for topic, form in forms.items() if subject.kind in form.subjects]
    if not found:
        kinds = sorted({kind for form in forms.values() for kind in form.subjects})
        raise ConfigError(
            f"no stream or table says that its records are a {subject.kind}'s; there are {', '.join(kinds) or 'no kinds'}",
            hint=f'subject={{"{subject.kind}": "COLUMN"}} where the topic is defined',
        )
    for topic in found:
        column, kind = forms[topic].subjects[subject.kind]
        if kind.lower() != "string" and not _is_whole(subject.name):
            raise ConfigError(
                f"subject {subject.kind}: column {column} of topic {topic} is {kind}; found {subject.name!r}"
            )
    return found


def stores_of(pipelines: Iterable[Pipeline]) -> list[str]:
    """The stores in which pipelines keep views."""
    return list(dict.fromkeys(view.to for p in pipelines for view in p.views.values() if view.kept))


def reads_subject(view: View, kind: str) -> bool:
    """Whether a view is made of records that know this kind of subject."""
    return any(kind in dict(each.personal.subjects) for each in sources_of(view.node) if each.personal is not None)


def form_of(topic: str, rules: Collection[Rule]) -> TopicForm | None:
    """How to tell whose the records of a topic are, by what the register has learned."""
    sources = [
        Source(
            rule.kind,  # type: ignore[arg-type]
            topic,
            topic,
            tuple(Column(*each) for each in rule.columns.items()),
            rule.codec,  # type: ignore[arg-type]
            rule.avro_schema,
            key=tuple(rule.key),
            personal=Personal(tuple(rule.subjects.items())),
        )
        for rule in rules
    ]
    return TopicForm(topic, tuple(sources)) if sources else None


def hides(log: Log, topic: str) -> Callable[[bytes | None, bytes | None], bool] | None:
    """A function that says of a record whether it is of somebody who is to be forgotten; None if there is nobody."""
    if not log.url.startswith("sqlite:") or not (path := register_of(log.url)).exists():
        return None
    with Register(path, create=False) as register:
        subjects = {each.subject for each in register.waiting()}
        form = form_of(topic, register.rules(topic))
    if form is None or not subjects:
        return None

    def is_hidden(key: bytes | None, value: bytes | None) -> bool:
        return not subjects.isdisjoint(form.owners(key, value) or ())

    return is_hidden


def _hide(pipelines: Sequence[Pipeline], subject: Subject, request_id: str) -> tuple[list[str], list[str]]:
    """Hide rows in all stores; the views in which something is hidden, and those that may still show something."""
    hidden: list[str] = []
    shown: list[str] = []
    rows: dict[str, list[Hidden]] = {}
    for pipeline in pipelines:
        for view in pipeline.views.values():
            if not view.kept or not reads_subject(view, subject.kind):
                continue
            columns = [name for name, kind in subject_columns(view.node).items() if kind == subject.kind]
            (hidden if columns else shown).append(view.name)
            rows.setdefault(view.to, []).extend(Hidden(request_id, view.name, each, subject.name) for each in columns)
    for address, found in rows.items():
        if found:
            with open_writer(address) as writer:
                writer.hide(found)
    return hidden, shown


def _rule(source: Source) -> Rule:
    subjects = dict(source.personal.subjects) if source.personal else {}
    columns = {each.name: each.type for each in source.columns}
    return Rule(source.kind, columns, source.codec, source.avro_schema, list(source.key), subjects)


def _is_whole(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), int)
    except msgspec.DecodeError:
        return False
