"""Functions of a pipeline: Python that its expressions call by name, as they call Spark's functions.

A function gives a value of its declared type for its arguments, the same each time: a record is computed again after a crash, by
``verify`` and in a rebuild. What is certain without a row is checked where the function is registered and where a view calls it.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from types import CodeType
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from sqlglot import TokenType

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.fingerprint import digest_of
from millstream.relation.nodes import NOWHERE, Node, Place, Source, inputs_of
from millstream.relation.schema import parse_columns, tokens_of
from millstream.relation.source_location import here, placed
from millstream.relation.spark_functions import SPARK_FUNCTIONS

Kind: TypeAlias = Literal["python", "pandas", "arrow"]
"""What a function gets: the values of a row, pandas series of many rows, or Arrow arrays of them."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\(\d+(?:,\d+)?\))?")
_ARRAY = re.compile(r"array<(.*)>")
_BITS = {"tinyint": 7, "byte": 7, "smallint": 15, "short": 15, "int": 31, "integer": 31, "bigint": 63, "long": 63}
_FLOATS = ("float", "real", "double")
_CLASSES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool, "string": str, "binary": (bytes, bytearray), "timestamp": datetime, "timestamp_ntz": datetime,
}  # fmt: skip
_KINDS: dict[int, Kind] = {100: "python", 101: "python", 200: "pandas", 250: "arrow"}
"""PySpark's numbers for the kinds of its own functions."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a pipeline. ``digest`` stands for its text: where that differs, a view that calls it is another one."""

    tag: ClassVar[str] = "Function"
    name: str
    returns: str
    kind: Kind
    digest: str
    function: Callable[..., Any] = field(compare=False)
    place: Place = field(default=NOWHERE, compare=False)


class Functions:
    """The functions of a pipeline, by name; :meth:`register` has the form of ``spark.udf.register``.

    A function must give the same value for the same arguments, on every machine: no clock, no random numbers, nothing that changes
    outside. Its module-level names and what it imports count too, though the fingerprint has only its text.

    :raises PlanError: by its methods, with file and line, if something does not hold together

    >>> from millstream import Pipeline
    >>> shop = Pipeline("shop")
    >>> @shop.udf("string")
    ... def shout(text):
    ...     return text and text.upper() + "!"
    >>> shop.stream("clicks", "page string").select("shout(page) AS loud").columns, list(shop.udf)
    (('loud',), ['shout'])
    """

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self._known: dict[str, Function] = {}

    def __iter__(self) -> Iterator[str]:
        return (each.name for each in self._known.values())

    @property
    def all(self) -> tuple[Function, ...]:
        """The functions, in the order in which they were registered."""
        return tuple(self._known.values())

    def __call__(
        self, returns: Any, *, name: str | None = None, kind: Kind = "python"
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register the function below, as a decorator; the function stays what it is.

        :param returns: the Spark type of its values
        :param name: what expressions call it; its own name unless said
        :param kind: what it gets: ``"python"``, ``"pandas"`` or ``"arrow"``
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            return self.register(name or str(getattr(function, "__name__", "")), function, returns, kind=kind)

        return register

    def register(
        self, name: str, function: Callable[..., Any], returns: Any = None, *, kind: Kind = "python"
    ) -> Callable[..., Any]:
        """Let the expressions of views that are defined from now on call a function by name.

        It is called for the rows that the filters before it keep, with nulls among them as ``None``. Where a ``"python"`` function
        raises, or gives another value than it declares, the expression fails for that record alone.

        :param name: what expressions call it; it must be none of Spark's own functions
        :param function: a function of the values of one row, or one of many rows with ``kind``; or what ``udf``, ``pandas_udf`` or
            ``arrow_udf`` of PySpark made
        :param returns: the Spark type of its values, ``"string"``; not for functions that PySpark made
        :param kind: ``"python"``: values of one row; ``"pandas"``: a ``Series`` for each argument; ``"arrow"``: a ``pyarrow.Array``
        """
        place = here()
        with placed(place):
            what = f"function {name}"
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise PlanError(f"function {name!r}: expected a name of 1 to 63 letters, digits and _")
            if name.lower() in SPARK_FUNCTIONS or not _is_callable(name):
                raise PlanError(
                    f"{what}: Spark has a function or a word of that name", hint=f"call it my_{name.lower()}"
                )
            if (other := self._known.get(name.lower())) is not None:
                raise PlanError(f"{what}: there is one of that name already, registered at {other.place}")
            made, returns, kind = _of_spark(what, function, returns, kind)
            if not callable(made):
                raise PlanError(f"{what}: expected a function; found {made!r}")
            if _among_others(made):
                hint = "give it a line of its own, or a name with def"
                raise PlanError(
                    f"{what}: its text has another lambda in it, and the two could not be told apart", hint=hint
                )
            if kind not in get_args(Kind):
                raise PlanError(f"{what}: expected kind to be one of {', '.join(get_args(Kind))}; found {kind!r}")
            self._known[name.lower()] = Function(name, _type(what, returns), kind, digest_of(made), made, place)
        return function

    def called_by(self, node: Node) -> tuple[Function, ...]:
        """The functions that a relation calls, in the order of their names."""
        names = {name for text, _ in _texts(node) for name in called(text)}
        return tuple(self._known[name] for name in sorted(names & self._known.keys()))

    def check(self, node: Node, what: str) -> None:
        """Refuse calls of what is neither Spark's nor registered here.

        Without functions of its own a pipeline may call those of the session, which nobody knows before it runs.
        """
        for text, place in _texts(node) if self._known else ():
            for name in called(text):
                if name in self._known or name in SPARK_FUNCTIONS:
                    continue
                close = difflib.get_close_matches(name, [*self._known, *SPARK_FUNCTIONS], 1)
                first = f'register it before: udf.register("{name}", f, "string")'
                raise PlanError(
                    f"{place}: {what}: `{text}`: there is no function {name}, neither of Spark nor of pipeline {self.pipeline}",
                    hint=f"did you mean {self._known[close[0]].name if close[0] in self._known else close[0]}?"
                    if close
                    else first,
                )


def called(sql: str) -> frozenset[str]:
    """The names of the functions that an expression calls, in lower case; words of SQL with a bracket behind them are none.

    >>> sorted(called("shout(upper(t.page)) || (n IN (1, 2))"))
    ['shout', 'upper']
    """
    tokens = tokens_of(sql)
    return frozenset(
        token.text.lower()
        for before, token, behind in zip([None, *tokens], tokens, tokens[1:], strict=False)
        if token.token_type == TokenType.VAR
        and behind.token_type == TokenType.L_PAREN
        and not (before is not None and before.token_type == TokenType.DOT)
    )


def calling(functions: Iterable[Function], *texts: str) -> tuple[Function, ...]:
    """Those of the functions that expressions call."""
    given = tuple(functions)
    names = frozenset[str]().union(*map(called, texts)) if given else ()
    return tuple(each for each in given if each.name.lower() in names)


def given_as(value: Any, declared: str) -> Any:
    """What a function gave, as a value of its declared type; TypeError if it is none.

    Spark would make null, or another value, of what does not fit.
    """
    if value is None:
        return None
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if declared in _BITS:
        fits = (
            isinstance(value, int)
            and not isinstance(value, bool)
            and -(1 << _BITS[declared]) <= value < 1 << _BITS[declared]
        )
    elif declared in _FLOATS:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        value = float(value) if fits else value
    elif declared == "date":
        fits = isinstance(value, date) and not isinstance(value, datetime)
    elif array := _ARRAY.fullmatch(declared):
        fits = isinstance(value, list | tuple)
        value = [given_as(each, array[1]) for each in value] if fits else value
    else:
        fits = isinstance(value, _CLASSES.get(declared, Decimal))
    if not fits:
        raise TypeError(f"expected a value of type {declared}; found {value!r}")
    return value


def _texts(node: Node) -> Iterator[tuple[str, Place]]:
    """The expressions of a relation, those of its sources too, and where they are said."""
    for each in inputs_of(node):
        yield from _texts(each)
    if isinstance(node, Source):
        sequence = (node.sequence.producer, node.sequence.number) if node.sequence is not None else ()
        said = (node.time.said,) if node.time is not None and node.time.said else ()
        yield from ((text, node.place) for text in (*said, *sequence))
    yield from ((text, node.place) for text in node.expressions())


def _is_callable(name: str) -> bool:
    """Whether an expression can call a function of that name with any number of arguments."""
    try:
        used = [
            expression.check(f"{name}({', '.join(given)})", given, "call") for given in ([], ["a"], ["a", "b", "c"])
        ]
    except PlanError:
        return False
    return [len(each) for each in used] == [0, 1, 3] and called(f"{name}()") == {name.lower()}


def _among_others(function: Callable[..., Any]) -> bool:
    """Whether a lambda's text, which stands for it in fingerprints, holds another one beside it."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or code.co_name != "<lambda>":
        return False
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        return False
    return len(re.findall(r"\blambda\b", text)) > _lambdas(code)


def _lambdas(code: CodeType) -> int:
    """How many lambdas a function's code is made of, with itself."""
    inner = sum(_lambdas(each) for each in code.co_consts if isinstance(each, CodeType))
    return inner + (code.co_name == "<lambda>")


def _of_spark(what: str, function: Any, returns: Any, kind: Any) -> tuple[Any, Any, Any]:
    """The function, its type and its kind, also of what PySpark's ``udf`` and its like made."""
    number = getattr(function, "evalType", None)
    if number is None or not hasattr(function, "returnType"):
        return function, returns, kind
    if returns is not None or kind != "python":
        raise PlanError(f"{what}: PySpark's function has a type and a kind already", hint="leave them out")
    if number not in _KINDS:
        raise PlanError(f"{what}: expected a function that gives a value for each row; found another kind of PySpark's")
    if not function.deterministic:
        raise PlanError(f"{what}: it is not deterministic, and a replay must give the same answer")
    return function.func, function.returnType, _KINDS[number]


def _type(what: str, returns: Any) -> str:
    """The type that a function declares: a plain one, or an array of such."""
    declared = returns.simpleString() if hasattr(returns, "simpleString") else returns
    if not isinstance(declared, str):
        raise PlanError(f"{what}: expected the type of its values; found {returns!r}", hint='"string", as in Spark SQL')
    try:
        found = parse_columns(f"it {declared}")[0].type.replace(" ", "").lower()
    except PlanError as error:
        raise PlanError(f"{what}: {error.message}", hint=error.hint) from error
    inner = found
    while array := _ARRAY.fullmatch(inner):
        inner = array[1]
    if inner not in (*_BITS, *_FLOATS, *_CLASSES, "date") and not _DECIMAL.fullmatch(inner):
        raise PlanError(f"{what}: a function cannot give {found}; only plain types and arrays of them")
    return found
