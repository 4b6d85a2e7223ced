"""The place in the user's file where something was defined: every error about a definition begins with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from millstream.errors import ConfigError, PlanError
from millstream.relation.clauses import Place

_PACKAGE = str(Path(__file__).parent.parent) + os.sep

_SAID: ContextVar[Place | None] = ContextVar("said", default=None)


def here() -> Place:
    """Where :func:`said_at` says, else the line of the caller nearest to us that is not Millstream's own; its file as Python knows it, relative if below the
    working directory."""
    if (said := _SAID.get()) is not None:
        return said
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    file = frame.f_code.co_filename
    if os.path.isabs(file) and file.startswith(inside := os.path.join(os.getcwd(), "")):
        file = file.removeprefix(inside)
    return Place(file, frame.f_lineno)


@contextmanager
def placed(place: Place) -> Iterator[None]:
    """Put the place before the message of an error inside, unless the message names this line already.

    An address or a setting that cannot be used is the definition's fault too.
    """
    try:
        yield
    except ConfigError as error:
        raise PlanError(f"{place}: {error.message}", hint=error.hint) from error
    except PlanError as error:
        if error.message.startswith(f"{place}: "):
            raise
        raise PlanError(f"{place}: {error.message}", hint=error.hint) from error.__cause__


@contextmanager
def said_at(place: Place) -> Iterator[None]:
    """Give everything that is defined inside this place: one in a file of SQL, and not the line that reads the file.

    A place in a text without a file is within the line that is said around it, so that an error that comes later names both.
    """
    around = _SAID.get()
    if around is not None and not place.file:
        place = replace(place, within=str(around) if around.file else around.within)
    before = _SAID.set(place)
    try:
        yield
    finally:
        _SAID.reset(before)
