"""MATCH_RECOGNIZE compiled to the node that ``match`` of Python makes, each mistake at its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from millstream.errors import PlanError
from millstream.relation.operators import match
from millstream.relation.operators.checks import named_column
from millstream.relation.pattern import Pattern
from millstream.relation.pattern_search import Places, Said, Sought, Subset
from millstream.relation.pattern_text import PatternMistake, read_pattern
from millstream.relation.relation import Relation
from millstream.relation.source_location import here, placed, said_at
from millstream.sql.ast import Matched
from millstream.sql.match_clause import EXAMPLE
from millstream.sql.scope import Scope
from millstream.sql.select_list import ordering
from millstream.sql.tokens import Piece, Text, words
from millstream.sql.windows import span


def matched(relation: Relation, scope: Scope, said: Matched) -> Relation:
    """The matches among the rows of a relation, whose names are in the scope."""
    text = scope.text
    if not said.order:
        raise text.error(said.at, "MATCH_RECOGNIZE without ORDER BY: rows have no order of their own", EXAMPLE)
    partition = []
    for piece in said.partition:
        partition.append(scope.resolve(piece))
        with placed(text.place(piece.at)):
            named_column(partition[-1], relation.node, "PARTITION BY")
    cut = [ordering(piece, scope) for piece in said.order]
    order = ", ".join(f"{scope.resolve(piece)}{suffix}" for piece, suffix in cut)
    sought = Sought(
        _pattern(text, said),
        [Said(name, piece.sql, text.place(piece.at)) for name, piece in said.define],
        [Said(name, piece.sql, text.place(piece.at)) for name, piece in said.measures],
        [Subset(name, names, text.place(at)) for name, names, at in said.subset],
        said.shown,
        said.skip,
        span(text, said.within) if said.within else None,
        any(_asks_for_near(piece) for _, piece in said.measures),
        places=Places(
            text.place(said.pattern.at), text.place(said.skip_at), text.place(said.within.at) if said.within else None
        ),
    )
    with _placed(text, said), said_at(text.place(said.at)):
        return Relation(match.match(relation.node, (sought,), partition, order, here()))


def _asks_for_near(measure: Piece) -> bool:
    """Whether a measure has STAGE(), which is of near misses alone."""
    return any(word.text == "STAGE" and behind.text == "(" for word, behind in pairwise(words(measure.sql)))


def _pattern(text: Text, said: Matched) -> Pattern:
    try:
        return read_pattern(said.pattern.sql)
    except PatternMistake as error:
        raise text.error(said.pattern.at + error.at, error.message, error.hint) from None


@contextmanager
def _placed(text: Text, said: Matched) -> Iterator[None]:
    """Put the place of the clause before errors that have none of a part of it."""
    try:
        yield
    except PlanError as error:
        pieces = [
            said.pattern,
            *(piece for _, piece in (*said.define, *said.measures)),
            *([said.within] if said.within else []),
        ]
        places = [piece.at for piece in pieces] + [said.skip_at, *(at for _, _, at in said.subset)]
        if any(error.message.startswith(f"{text.place(at)}: ") for at in places):
            raise
        raise PlanError(f"{text.place(said.at)}: {error.message}", hint=error.hint) from error.__cause__
