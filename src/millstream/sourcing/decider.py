"""A decider: what an aggregate is, as three pure functions.

Commands may be refused; events never are. Deciding looks at a state and a command and says which events follow, or why none do;
evolving takes an event into the state. Both may run more than once, on any thread, so they do nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, Generic, TypeAlias, TypeVar, Union, get_args, get_origin

from millstream.errors import ConfigError

S = TypeVar("S")

Upcaster: TypeAlias = Callable[[dict[str, Any]], "dict[str, Any] | tuple[str, dict[str, Any]]"]
"""An old event's fields become those of the next version, or another type's name and the fields of its first version."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The answer to a command that is refused.

    :param reason: why, for whoever asked
    :param repeated: whether this is the answer of an earlier command with the same key

    >>> Rejected("the cart is empty").reason
    'the cart is empty'
    """

    reason: str
    repeated: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Decider(Generic[S]):
    """What an aggregate is.

    Events and commands are frozen dataclasses; what is in them must survive JSON. The version of an event's type is one more than the
    highest version that ``upcasters`` lead away from, and 1 without any.

    :param initial: the state before the first event
    :param decide: state and command give the events that follow, none or more, or Rejected
    :param evolve: state and event give the next state; the one before is not changed
    :param events: the types of events: a type, a union, or several in a tuple
    :param commands: the types of commands, likewise; needed where commands come through a topic
    :param upcasters: by (type, version), what brings an old event to the next version
    :param state: the type of states; that of ``initial`` unless it is said
    :raises ConfigError: if a type is no frozen dataclass, a name is there twice, or an upcaster leads nowhere

    >>> @dataclass(frozen=True)
    ... class Counted:
    ...     by: int
    >>> counter = Decider(0, lambda state, command: [Counted(command)], lambda state, event: state + event.by, events=Counted)
    >>> counter.evolve(counter.initial, Counted(3))
    3
    """

    initial: S
    decide: Callable[[S, Any], Iterable[Any] | Rejected]
    evolve: Callable[[S, Any], S]
    events: Any
    commands: Any = ()
    upcasters: Mapping[tuple[str, int], Upcaster] = field(default_factory=dict)
    state: Any = None

    def __post_init__(self) -> None:
        for kind, given in (("events", self.events), ("commands", self.commands)):
            names = [_checked(kind, each) for each in types_of(given)]
            if twice := {name for name in names if names.count(name) > 1}:
                raise ConfigError(
                    f"{kind}: {', '.join(sorted(twice))} is there twice; types are told apart by their names"
                )
        if not types_of(self.events):
            raise ConfigError(
                "events: found none, expected the types of events", hint="Decider(…, events=Added | Removed)"
            )
        for name, version in self.upcasters:
            if not isinstance(version, int) or version < 1:
                raise ConfigError(f"upcasters: found version {version!r} of {name}, expected a number from 1 on")
            missing = [v for v in range(1, version) if (name, v) not in self.upcasters]
            if missing:
                raise ConfigError(
                    f"upcasters: {name} has one from version {version}, and none from version {missing[0]}"
                )


def types_of(given: Any) -> tuple[type, ...]:
    """The types in a type, a union or a tuple.

    >>> types_of(int | str), types_of((int,)), types_of(())
    ((<class 'int'>, <class 'str'>), (<class 'int'>,), ())
    """
    if isinstance(given, UnionType) or get_origin(given) is Union:
        return get_args(given)
    return tuple(given) if isinstance(given, tuple | list) else (given,)


def version_of(decider: Decider[Any], name: str) -> int:
    """The version in which events of a type are written today."""
    return 1 + max((version for each, version in decider.upcasters if each == name), default=0)


def _checked(kind: str, given: Any) -> str:
    if not isinstance(given, type) or not is_dataclass(given):
        raise ConfigError(f"{kind}: found {given!r}, expected types that are dataclasses")
    if not given.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ConfigError(f"{kind}: {given.__name__} can be changed", hint="say @dataclass(frozen=True)")
    if any(each.name.startswith("__") for each in fields(given)):
        raise ConfigError(f"{kind}: {given.__name__} has a field that begins with two underscores")
    return given.__name__
