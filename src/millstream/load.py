"""Loading a pipeline or an event store out of a user's file, of Python or of SQL."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from typing import Any, TypeVar

from millstream.errors import MillstreamError, PlanError
from millstream.pipeline import Pipeline
from millstream.sourcing.store import EventStore
from millstream.sql.statement import read_script

T = TypeVar("T")


def load_pipeline(path: str | Path) -> Pipeline:
    """The one pipeline that a user's file defines: ``FILE.py``, which is run, or ``FILE.sql``. ``FILE.py:NAME`` picks one of several.

    :param path: the file, and behind a colon the name of one of several
    :raises PlanError: if there is no such file, or what it defines does not hold together; the error of a file names its line
    """
    file, name = str(path), ""
    if not Path(file).exists() and ":" in file:
        file, _, name = file.rpartition(":")
    if not Path(file).is_file():
        raise PlanError(f"{file}: there is no such file; expected a file of Python or SQL that defines a pipeline")
    if file.endswith(".sql"):
        if name:
            raise PlanError(f"{file}: a file of SQL defines one pipeline; found :{name}", hint=f"say {file}")
        return read_script(file)
    return _picked(file, name, Pipeline, "pipeline", 'shop = Pipeline("shop")')


def load_store(path: str | Path) -> EventStore[Any]:
    """The one event store that a user's file of Python defines; ``FILE.py:NAME`` picks one of several."""
    file, name = str(path), ""
    if not Path(file).exists() and ":" in file:
        file, _, name = file.rpartition(":")
    if not Path(file).is_file():
        raise PlanError(f"{file}: there is no such file; expected a file of Python that defines an event store")
    return _picked(file, name, EventStore, "event store", 'bank = EventStore("sqlite:bank.db", "accounts", account)')


def _picked(file: str, name: str, kind: type[T], called: str, example: str) -> T:
    """The one value of a type that a file defines, or that with the name."""
    found = {key: value for key, value in _run(file).items() if isinstance(value, kind)}
    if name:
        if name not in found:
            raise PlanError(f"{file}: no {called} {name}; there are {', '.join(found) or 'none'}")
        return found[name]
    one = {id(value): value for value in found.values()}
    if len(one) != 1:
        hint = f"say which: {file}:{next(iter(found))}" if found else f"define one at module level: {example}"
        raise PlanError(f"{file}: expected one {called}; found {', '.join(found) or 'none'}", hint=hint)
    return next(iter(one.values()))


def _run(file: str) -> dict[str, Any]:
    """What a file defines; it may import what lies beside it, as when Python runs it."""
    folder = str(Path(file).resolve().parent)
    sys.path.insert(0, folder)
    try:
        return runpy.run_path(file, run_name="__millstream__")
    except PlanError:
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        line = lines[-1] if lines else None
        if isinstance(error, SyntaxError) and error.filename == file:
            line = error.lineno
        message = error.message if isinstance(error, MillstreamError) else f"{type(error).__name__}: {error}"
        hint = error.hint if isinstance(error, MillstreamError) else ""
        raise PlanError(f"{file}:{line or 1}: {message}", hint=hint) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
