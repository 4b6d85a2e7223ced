"""The options of statements, ``WITH (name = value)``: which there are, and what their values become for Python.

They have the names that :class:`~millstream.pipeline.Pipeline` gives them; a codec may be said as format and schema, and the
parts of a clock one by one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from millstream.debezium import Debezium
from millstream.errors import ConfigError, PlanError
from millstream.registry import Registry
from millstream.relation.source import Clock
from millstream.sql.script import Option, Reader, cut

Given: TypeAlias = dict[str, Any]
Convert: TypeAlias = Callable[[Option, str], Any]


def _refused(option: Option, what: str, expected: str) -> PlanError:
    found = "null" if option.value is None else repr(option.value)
    return PlanError(f"{option.place}: {what}: expected {option.name} to be {expected}; found {found}")


def _text(option: Option, what: str) -> Any:
    if not isinstance(option.value, str):
        raise _refused(option, what, "text in quotes")
    return option.value


def _names(option: Option, what: str) -> Any:
    """``'a, b'``."""
    return [each.strip().strip("`") for each in _text(option, what).split(",")]


def _span(option: Option, what: str) -> Any:
    if option.value is None or isinstance(option.value, bool | int | float):
        raise _refused(option, what, "a span of time, '10 seconds' or INTERVAL 10 SECONDS")
    return option.value


def _span_or_null(option: Option, what: str) -> Any:
    return None if option.value is None else _span(option, what)


def _flag(option: Option, what: str) -> Any:
    if not isinstance(option.value, bool):
        raise _refused(option, what, "true or false")
    return option.value


def _number(option: Option, what: str) -> Any:
    if isinstance(option.value, bool) or not isinstance(option.value, int):
        raise _refused(option, what, "a whole number")
    return option.value


def _plain(option: Option, what: str) -> Any:
    """Any value as text, for settings of others."""
    if option.value is None:
        raise _refused(option, what, "a value")
    return str(option.value).lower() if isinstance(option.value, bool) else str(option.value)


def _pair(option: Option, what: str) -> Any:
    """Two expressions, ``'device, number'``."""
    (statement,) = cut(f"({_text(option, what)})")
    found = [statement.between(each.index, each.end) for each in Reader(statement).items()]
    if len(found) != 2:
        raise _refused(option, what, "a producer and its number, two expressions: 'device, number'")
    return tuple(found)


_REGISTRY = ("registry", "registry.user", "registry.password")
_CODEC: dict[str, Convert] = {"codec": _text, "format": _text, "schema": _text, **dict.fromkeys(_REGISTRY, _text)}
_CLOCK: dict[str, Convert] = {"clock.sent": _text, "clock.received": _text, "clock.wild": _span}
PIPELINE: dict[str, Convert] = {
    "log": _text,
    "to": _text,
    "checkpoint": _text,
    "buckets": _number,
    "dead_letters": _number,
}
STREAM: dict[str, Convert] = {
    "topic": _text, "key": _names, **_CODEC, "time": _text, "delay": _span, "lateness": _span, "late": _text,
    "ahead": _span, "idle": _span_or_null, **_CLOCK, "sequence": _pair, "failed": _text,
}  # fmt: skip
TABLE: dict[str, Convert] = {"topic": _text, "key": _names, **_CODEC, "deduplicate": _flag, "failed": _text}
VIEW: dict[str, Convert] = {"to": _text, "key": _names, "unbounded": _flag}
SINK: dict[str, Convert] = {"mode": _text, "refused": _text}


def given(options: Sequence[Option], known: Mapping[str, Convert], what: str, open_to: Sequence[str] = ()) -> Given:
    """What options say, by the names that Python has for them; ``open_to`` are beginnings of names that are not ours."""
    found: Given = {}
    places = {option.name: option for option in options}
    for option in options:
        if option.name in found:
            raise PlanError(f"{option.place}: {what}: option {option.name} is there twice")
        if option.name in known:
            found[option.name] = known[option.name](option, what)
        elif option.name.startswith(tuple(open_to)):
            found[option.name] = _plain(option, what)
        else:
            close = difflib.get_close_matches(option.name, known, 1)
            raise PlanError(
                f"{option.place}: {what}: no option {option.name}; there are {', '.join(known)}",
                hint=f"did you mean {close[0]}?" if close else "",
            )
    _codec(found, places, what)
    clock = {name.removeprefix("clock."): found.pop(name) for name in _CLOCK if name in found}
    if clock:
        if "sent" not in clock:
            raise PlanError(f"{places[next(n for n in _CLOCK if n in places)].place}: {what}: a clock needs clock.sent")
        found["clock"] = Clock(**clock)
    return found


def _codec(found: Given, places: Mapping[str, Option], what: str) -> None:
    """``format``, ``schema`` and ``registry`` as a codec."""
    registry = {name: found.pop(name) for name in _REGISTRY if name in found}
    kind, schema = found.pop("format", None), found.pop("schema", None)
    if kind is not None and "codec" in found:
        raise PlanError(f"{places['format'].place}: {what}: format and codec say the same; found both")
    if kind is not None and kind.lower() not in ("json", "confluent-json", "text", "debezium", "avro"):
        raise _refused(places["format"], what, "'json', 'confluent-json', 'text', 'debezium' or 'avro'")
    if (schema is not None) != (kind is not None and kind.lower() == "avro"):
        place = places["schema" if schema is not None else "format"].place
        raise PlanError(
            f"{place}: {what}: format = 'avro' and a schema belong together",
            hint="""WITH (format = 'avro', schema = '{"type": "record", …}')""",
        )
    if kind is not None:
        found["codec"] = schema if schema is not None else kind.lower()
    if registry:
        found["codec"] = _registered(found.get("codec"), registry, places, what)


def _registered(codec: Any, said: Mapping[str, Any], places: Mapping[str, Option], what: str) -> Debezium:
    """The codec of envelopes whose schemas are in a registry."""
    place = places[next(iter(said))].place
    if codec != "debezium" or "registry" not in said:
        raise PlanError(
            f"{place}: {what}: format = 'debezium' and a registry belong together",
            hint="WITH (format = 'debezium', registry = 'http://HOST:8081'), and registry.user, registry.password if it asks for them",
        )
    try:
        user, password = said.get("registry.user"), said.get("registry.password")
        return Debezium(Registry(said["registry"], user=user, password=password))
    except ConfigError as error:
        raise PlanError(f"{place}: {what}: {error.message}", hint=error.hint) from error
