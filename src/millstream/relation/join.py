"""The arguments of a join: equalities of expressions over either side, the kind of join, and its bounds in time.

Two streams meet within an interval, a stream and a table as of the event's time or as it is now. Without any of these a join is
*regular*: all rows of both sides are kept, as of two tables they must be; of a stream they never end, which the view must say
that it means (:mod:`millstream.plan.growth`). What does not fit together is refused here, with the nearest thing that works.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TypeAlias, get_args

from sqlglot import Token, TokenError, TokenType

from millstream.errors import PlanError
from millstream.relation import expression
from millstream.relation.foreign_names import SparkHow, meant_join, meant_text, spoken_how
from millstream.relation.nodes import Equality, How, Join, Node, Place, Select, Source, Where, output_columns
from millstream.relation.properties import event_time, is_insert_only, is_stream, natural_key, visible
from millstream.relation.schema import parse_duration, tokens_of

Within: TypeAlias = str | timedelta | tuple[str | timedelta, str | timedelta]

_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.CASE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.END)
_CONDITIONS = {
    TokenType.OR, TokenType.NOT, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE, TokenType.NEQ,
    TokenType.NULLSAFE_EQ, TokenType.LIKE, TokenType.ILIKE, TokenType.RLIKE, TokenType.IN, TokenType.BETWEEN, TokenType.IS,
}  # fmt: skip
_EQUAL_HINT = 'write equalities, as on="user_id = id AND day = day", and other conditions in a where() after the join'


def join(
    left: Node,
    right: Node,
    names: tuple[str, str],
    on: str | Sequence[str],
    how: How | SparkHow,
    within: Within | None,
    as_of: str | None,
    latest: bool,
    place: Place,
) -> Join:
    """A join of two relations that go by ``names``, checked."""
    kind: How = spoken_how(how)
    if kind not in get_args(How):
        raise PlanError(
            f"join: expected how to be one of {', '.join(get_args(How))}; found {how!r}", hint=meant_join(how)
        )
    bounds = _bounds(within) if within is not None else None
    _check_time(left, right, kind, bounds, as_of, latest)
    if not isinstance(on, str | Sequence):
        raise PlanError(
            f"join: expected on to be text or a list of texts; found {on!r}", hint=meant_text(on) or _EQUAL_HINT
        )
    texts = (on,) if isinstance(on, str) else tuple(on)
    equalities = tuple(each for text in texts for each in _equalities(text, left, right, names))
    if not equalities:
        raise PlanError("join: expected at least one equality; found none", hint=_EQUAL_HINT)
    made = Join(left, right, equalities, kind, bounds, as_of and event_time(left), latest, place)
    seen = {name.lower() for name in output_columns(left)}
    merged = {name.lower() for name in made.merged}
    twice = [name for name in output_columns(right) if name.lower() in seen and name.lower() not in merged]
    if twice and kind not in ("semi", "anti"):
        raise PlanError(
            f"join: both sides have a column {twice[0]}; expected different names",
            hint=f'rename one before: select("{twice[0]} AS other_{twice[0]}", …); on="{twice[0]}" makes them one',
        )
    if as_of is not None:
        _check_key(made)
    return made


def _bounds(within: Within) -> tuple[timedelta, timedelta]:
    """The least and the greatest of right time − left time; one duration bounds it both ways."""
    if isinstance(within, str | timedelta):
        span = parse_duration(within)
        return -span, span
    if not isinstance(within, tuple | list) or len(within) != 2:
        raise PlanError(f"join: expected within to be a duration or two of them; found {within!r}")
    low, high = (_signed_duration(each) for each in within)
    if low > high:
        raise PlanError(
            f"join: expected the first of within to be the lower; found {within!r}",
            hint="it bounds right time − left time, from the least to the greatest",
        )
    return low, high


def _signed_duration(text: str | timedelta) -> timedelta:
    if isinstance(text, timedelta):
        return text
    if isinstance(text, str) and text.strip().startswith("-"):
        return -parse_duration(text.strip()[1:].strip())
    return parse_duration(text)


def _check_time(left: Node, right: Node, how: How, within: object, as_of: str | None, latest: bool) -> None:
    """Refuse what does not fit the kinds of the two relations."""
    streams = is_stream(left), is_stream(right)
    given = [
        name for name, on in (("within", within is not None), ("as_of", as_of is not None), ("latest", latest)) if on
    ]
    found = f"found {', '.join(given)}"
    if not given:
        return
    if streams == (False, True):
        raise PlanError(
            f"join: a table with a stream, {given[0]}; expected the stream first", hint="stream.join(table, …)"
        )
    if streams == (True, True):
        if given != ["within"]:
            raise PlanError(
                f"join: two streams take within=, and neither as_of= nor latest=; {found}",
                hint='within=("0 minutes", "1 hour") takes rows of the right up to an hour after the left',
            )
        for node, side in ((left, "left"), (right, "right")):
            if event_time(node) is None:
                raise PlanError(
                    f"join: the {side} stream has no event time to be within anything",
                    hint='streams need time="at", and a select() must keep that column as it is',
                )
    elif streams == (True, False):
        if given not in (["as_of"], ["latest"]):
            raise PlanError(
                f"join: a stream with a table takes as_of= or latest=True, one of them; {found}",
                hint='as_of="at" takes the table as it was at the event\'s time',
            )
        if how not in ("inner", "left"):
            raise PlanError(
                f'join: a stream with a table by {given[0]} is "inner" or "left"; found {how!r}',
                hint="without it, all rows of both are kept, and any kind of join is possible",
            )
        if latest and not is_insert_only(left):
            raise PlanError(
                "join: latest=True on a stream whose rows may be taken back: what was joined is not known again",
                hint="as_of= corrects itself",
            )
        if as_of is not None:
            _check_as_of(left, right, as_of)
        return
    else:
        raise PlanError(
            f"join: two tables (or aggregates) have no time to compare; {found}", hint=f"leave out {given[0]}"
        )
    if how in ("semi", "anti") and streams[0]:
        raise PlanError(
            f'join: how="{how}" is for two tables, or for streams without within=; found within',
            hint="deduplicate or aggregate the right, and join it inner",
        )


def _check_as_of(left: Node, right: Node, as_of: str) -> None:
    time = event_time(left)
    if time is None or not isinstance(as_of, str) or as_of.lower() != time.lower():
        expected = (
            f"{time}, which is the event time of the stream" if time else "a stream with event time, kept as it is"
        )
        raise PlanError(f"join: as_of={as_of!r}; expected {expected}", hint='streams need time="at"')
    bottom = right
    while isinstance(bottom, Where | Select):
        bottom = bottom.input
    if not isinstance(bottom, Source):
        raise PlanError(
            "join: as_of= needs a table that is a topic, whose changes have times; found an aggregate or a join",
            hint="latest=True takes it as it is when the event is processed",
        )


def _check_key(node: Join) -> None:
    key = natural_key(node.right)
    used = [expression.plain_column(each.right) for each in node.on]
    if not key or sorted(str(name).lower() for name in used) != sorted(name.lower() for name in key):
        raise PlanError(
            f"join: as_of= finds the rows of a table by its whole key ({', '.join(key) or 'which a select left out'});"
            f" found {', '.join(each.right for each in node.on)}",
            hint="name each key column once; other conditions go into a where() after",
        )


def _equalities(text: str, left: Node, right: Node, names: tuple[str, str]) -> list[Equality]:
    """Read ``a = b AND c = d``, or one name that both sides have."""
    if not isinstance(text, str):
        raise PlanError(f"join: expected on to be text; found {text!r}", hint=meant_text(text) or _EQUAL_HINT)
    try:
        tokens = tokens_of(text)
    except TokenError as error:
        raise PlanError(f"join on `{text}`: this is not Spark SQL") from error
    made = []
    for part in _split(tokens, TokenType.AND):
        sides = _split(part, TokenType.EQ)
        loose = [token for token, depth in _depths(part) if not depth and token.token_type in _CONDITIONS]
        if not all(sides) or len(sides) > 2 or loose:
            shown = text[part[0].start : part[-1].end + 1] if part else ""
            raise PlanError(f"join on `{text}`: expected equalities joined by AND; found `{shown}`", hint=_EQUAL_HINT)
        operands = [_Operand(text, side, names) for side in sides]
        made.append(_equality(text, operands if len(operands) == 2 else operands * 2, left, right))
    return made


def _equality(text: str, operands: list[_Operand], left: Node, right: Node) -> Equality:
    one, other = operands
    plain = [expression.plain_column(each.text) for each in operands]
    same = plain[0] is not None and plain[1] is not None and plain[0].lower() == plain[1].lower()
    fits = [each.fits(left, right) for each in operands]
    if same and fits == [{0, 1}, {0, 1}]:
        fits = [{0}, {1}]  # a = a: one of each
    for each, found in zip(operands, fits, strict=True):
        if len(found) > 1:
            raise PlanError(
                f"join on `{text}`: both sides have {each.text}",
                hint=f'name the side: left.alias("l").join(right.alias("r"), on="l.{each.text} = …")',
            )
    if fits[0] == fits[1]:
        side = "left" if 0 in fits[0] else "right"
        raise PlanError(f"join on `{text}`: {one.text} and {other.text} are both of the {side}; expected one of each")
    if fits == [{1}, {0}]:
        one, other = other, one
    columns = output_columns(left)
    spelled = next((name for name in columns if same and name.lower() == str(plain[0]).lower()), "")
    return Equality(one.text, other.text, spelled)


class _Operand:
    """One side of an equality, its columns without the name of the relation, and the side whose name stood before them."""

    def __init__(self, text: str, tokens: list[Token], names: tuple[str, str]) -> None:
        self.said: set[int] = set()
        self.whole = text[tokens[0].start : tokens[-1].end + 1]
        cut, parts = tokens[0].start, []
        for index, token in enumerate(tokens[:-2]):
            qualifies = tokens[index + 1].token_type == TokenType.DOT
            inner = index > 0 and tokens[index - 1].token_type == TokenType.DOT
            whose = {side for side, name in enumerate(names) if name and name.lower() == token.text.lower()}
            if not qualifies or inner or not whose:
                continue
            if len(whose) > 1:
                raise PlanError(
                    f"join on `{text}`: both sides are called {token.text}", hint='name them: relation.alias("l")'
                )
            self.said |= whose
            parts.append(text[cut : token.start])
            cut = tokens[index + 2].start
        self.text = "".join(parts) + text[cut : tokens[-1].end + 1]

    def fits(self, left: Node, right: Node) -> set[int]:
        """The sides whose columns these can be: one, or both where a name is of both."""
        columns = visible(left), visible(right)
        if len(self.said) > 1:
            raise PlanError(f"join: `{self.whole}` is of both sides; expected columns of one", hint=_EQUAL_HINT)
        if self.said:
            (side,) = self.said
            expression.check(self.text, columns[side], "join on")
            return {side}
        used = {name.lower() for name in expression.check(self.text, (*columns[0], *columns[1]), "join on")}
        if not used:
            raise PlanError(f"join: `{self.whole}` has no column", hint="compare with values in a where()")
        found = {side for side in (0, 1) if used <= {name.lower() for name in columns[side]}}
        if not found:
            raise PlanError(f"join: `{self.whole}` is of both sides; expected columns of one", hint=_EQUAL_HINT)
        return found


def _depths(tokens: list[Token]) -> list[tuple[Token, int]]:
    """Each token with how many brackets are open around it."""
    made, depth = [], 0
    for token in tokens:
        depth -= token.token_type in _CLOSING
        made.append((token, depth))
        depth += token.token_type in _OPENING
    return made


def _split(tokens: list[Token], at: TokenType) -> list[list[Token]]:
    """The tokens between those of one kind, outside of brackets."""
    groups: list[list[Token]] = [[]]
    for token, depth in _depths(tokens):
        if token.token_type == at and not depth:
            groups.append([])
        else:
            groups[-1].append(token)
    return groups


def called(node: Node, name: str) -> str:
    """What a join's equalities may call a relation: its own name, or that of its source."""
    while isinstance(node, Where | Select):
        node = node.input
    return name or (node.name if isinstance(node, Source) else "")
