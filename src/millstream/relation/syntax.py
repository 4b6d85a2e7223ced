"""Expressions as tokens and trees: where their columns, brackets and commas are, and which are nothing but a column.

The parser is there to say which words are columns. Names of columns compare without regard to case, as in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from sqlglot import ParseError, Token, TokenError, TokenType, exp, parse_one

from millstream.errors import PlanError
from millstream.relation.foreign_names import meant_text
from millstream.relation.schema import DIALECT, tokens_of

CALLED_WITHOUT_BRACKETS = frozenset(
    ("current_date", "current_time", "current_timestamp", "current_user", "localtimestamp", "session_user")
)
"""Functions that look like columns."""
_PREFIX = "SELECT "  # so that a column named like a statement (comment, show, set) is read as a column
_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET)


@lru_cache(maxsize=4096)  # a chain asks hundreds of times about a few names
def plain_column(sql: str) -> str | None:
    """Give the column's name if the expression is nothing but a column.

    >>> plain_column("`unit price`"), plain_column("price + 1"), plain_column("order.price")
    ('unit price', None, None)
    """
    tree = parse(sql, "expression")
    if isinstance(tree, exp.Column) and len(tree.parts) == 1 and isinstance(tree.this, exp.Identifier):
        return tree.name
    return None


def lower_column(sql: str) -> str:
    """The column's name in lower case if the expression is nothing but a column; nothing otherwise.

    >>> lower_column("Page"), lower_column("upper(page)")
    ('page', '')
    """
    return (plain_column(sql) or "").lower()


def is_column(sql: str, name: str) -> bool:
    """Whether an expression is nothing but this column.

    >>> is_column("Page", "page"), is_column("upper(page)", "page")
    (True, False)
    """
    return lower_column(sql) == name.lower()


def quote(name: str) -> str:
    """Write a column's name as an expression: as it is where that reads as the column, else in backquotes.

    >>> quote("page"), quote("unit price"), quote("values")
    ('page', '`unit price`', '`values`')
    """
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name.lower() not in CALLED_WITHOUT_BRACKETS:
        try:
            if plain_column(name) == name:
                return name
        except PlanError:
            pass  # a keyword
    return "`" + name.replace("`", "``") + "`"


def words_of(sql: str, what: str) -> list[Token]:
    """The tokens of an expression; there is at least one."""
    try:
        tokens = tokens_of(sql)
    except TokenError as error:
        raise PlanError(f"{what} `{sql}`: this is not Spark SQL (is a quote or comment left open?)") from error
    if not tokens:
        raise PlanError(f"{what}: expected a Spark SQL expression; found nothing")
    return tokens


def parse(sql: str, what: str) -> exp.Expr:
    """Read one expression, or one with a name."""
    if not isinstance(sql, str):
        raise PlanError(f"{what}: expected a Spark SQL expression as text; found {sql!r}", hint=meant_text(sql))
    tokens = words_of(sql, what)
    try:
        tree = _tree(sql)
    except ParseError as error:
        found = error.errors[0]["highlight"] if error.errors else None
        near = f"; it stops making sense at {found!r}" if found else ""
        raise PlanError(f"{what} `{sql}`: this is not Spark SQL{near}") from error
    except RecursionError as error:
        raise PlanError(f"{what}: an expression of {len(tokens)} words is nested too deeply") from error
    more = [] if isinstance(tree, exp.Select) else ["another statement"]
    more += [key.rstrip("_") for key, value in tree.args.items() if value and key != "expressions"]
    # A comma at the end is none to the parser, so it is looked for here.
    if more or len(tree.expressions) != 1 or tokens[-1].token_type == TokenType.COMMA:
        found = more[0] if more else "a list"
        raise PlanError(f"{what} `{sql}`: expected one expression; found {found}")
    first: exp.Expr = tree.expressions[0]
    return first


@lru_cache(maxsize=1024)  # one definition asks many times about the same texts; nobody changes a tree
def _tree(sql: str) -> exp.Expr:
    return parse_one(_PREFIX + sql, dialect=DIALECT)


def free_columns(tree: exp.Expr) -> Iterator[exp.Column]:
    """The columns in order of their place; a lambda's variables are none."""
    found = [column for column in tree.find_all(exp.Column) if isinstance(column.parts[0], exp.Identifier)]
    for column in sorted(found, key=lambda each: span_of(each.parts[0])):
        if column.parts[0].name.lower() not in lambda_variables(column):
            yield column


def lambda_variables(node: exp.Expr) -> frozenset[str]:
    """The variables of the lambdas that a column stands in."""
    names: set[str] = set()
    ancestor = node.find_ancestor(exp.Lambda)
    while ancestor is not None:
        names |= {variable.name.lower() for variable in ancestor.expressions}
        ancestor = ancestor.find_ancestor(exp.Lambda)
    return frozenset(names)


def span_of(identifier: exp.Expr) -> tuple[int, int]:
    """Where in the text an identifier is, quotes included."""
    return identifier.meta["start"] - len(_PREFIX), identifier.meta["end"] + 1 - len(_PREFIX)


def closing_bracket(tokens: list[Token], opening: int) -> int | None:
    """The bracket that closes the one at ``opening``."""
    if len(tokens) <= opening or tokens[opening].token_type != TokenType.L_PAREN:
        return None
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index].token_type == TokenType.L_PAREN) - (tokens[index].token_type == TokenType.R_PAREN)
        if depth == 0:
            return index
    return None


def between_commas(tokens: list[Token], text: str) -> tuple[str, ...]:
    """The texts between the commas of a call."""
    groups: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if token.token_type == TokenType.COMMA and depth == 0:
            groups.append([])
        else:
            groups[-1].append(token)
    if groups == [[]]:
        return ()
    return tuple(text[group[0].start : group[-1].end + 1] if group else "" for group in groups)
