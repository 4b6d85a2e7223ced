"""The tree in the docstring is the tree in the code."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from millstream import errors
from millstream.errors import MillstreamError, OffsetOutOfRange

CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__ == errors.__name__
}


def drawn() -> dict[str, str | None]:
    """Each name in the drawing with the name it hangs on."""
    parents: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").partition("::\n")[2].splitlines():
        if found := re.match(r"([\s│├└─]*)([A-Z]\w+)", line):
            depth, name = len(found[1]), found[2]
            while above and above[-1][0] >= depth:
                above.pop()
            parents[name] = above[-1][1] if above else None
            above.append((depth, name))
    return parents


def test_every_error_is_drawn_and_every_drawn_one_is_there() -> None:
    assert drawn().keys() == CLASSES.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_inherits_as_drawn(name: str) -> None:
    parent = drawn()[name]
    assert [base.__name__ for base in CLASSES[name].__bases__] == [parent or "Exception"]


@pytest.mark.parametrize("kind", CLASSES.values(), ids=list(CLASSES))
def test_one_class_catches_all_and_the_hint_is_shown(kind: type[MillstreamError]) -> None:
    more: dict[str, Any] = {"missing": (3, 5)} if issubclass(kind, OffsetOutOfRange) else {}
    error = kind("it broke", hint="mend it", **more)
    assert isinstance(error, MillstreamError)
    assert (error.message, error.hint) == ("it broke", "mend it")
    assert str(error) == "it broke\n  hint: mend it"
    assert str(kind("it broke", **more)) == "it broke"
    assert kind.__doc__


def test_what_is_missing_is_a_half_open_range() -> None:
    assert OffsetOutOfRange("gone", missing=(3, 5)).missing == (3, 5)
