"""Expressions with others in the place of their columns and calls.

Text is only ever cut at the places where its tokens begin and end, and never written anew from a parsed tree: what Spark gets is what
the user wrote, apart from what was replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from sqlglot import Token, TokenType, exp

from millstream.errors import PlanError
from millstream.relation.syntax import (
    closing_bracket,
    free_columns,
    lambda_variables,
    parse,
    plain_column,
    quote,
    span_of,
    words_of,
)


def substitute(sql: str, mapping: Mapping[str, str]) -> str:
    """Put expressions in the place of columns; a column that is not in ``mapping`` stays.

    Where every column stands for itself the text comes back as it was. Field names of ``struct(a, b)`` are kept; those of
    ``arrays_zip(a, b)``, which Spark also takes from the columns, are not.

    >>> substitute("amount * 2", {"amount": "price + tax"})
    '(price + tax) * 2'
    """
    replacements = {name.lower(): text for name, text in mapping.items()}

    def stand_in(names: tuple[str, ...], _: int) -> tuple[int, str] | None:
        replacement = replacements.get(names[0].lower())
        return None if replacement is None else (1, replacement)

    return replace_columns(sql, stand_in)


def replace_columns(sql: str, stand_in: Callable[[tuple[str, ...], int], tuple[int, str] | None]) -> str:
    """Put expressions in the place of columns, each as it is written: ``a``, or ``t.a`` with a table or a struct before it.

    ``stand_in`` gets the names and where in the text they begin. It gives how many of the names to replace and with what, or None
    to leave them.

    >>> replace_columns("b.price * b.n", lambda names, _: (2, names[1]))
    'price * n'
    """
    tree = parse(sql, "expression")
    tokens = words_of(sql, "expression")
    at = {token.start: index for index, token in enumerate(tokens)}
    edits: list[tuple[int, int, str]] = []
    for column in free_columns(tree):
        start, _ = span_of(column.parts[0])
        found = stand_in(tuple(part.name for part in column.parts), start)
        if found is None:
            continue
        count, replacement = found
        last, (inner, end) = column.parts[-1], span_of(column.parts[count - 1])
        same = (plain_column(replacement) or "").lower() == column.parts[count - 1].name.lower()
        if same and count == 1:
            continue
        _refuse_capture(column, replacement, sql)
        if same:
            edits.append((start, inner, ""))
            continue
        alone = count == 1 and _is_alone(tokens, at[start])
        edits.append((start, end, _trim(replacement) if alone else _operand(replacement)))
        if (name := _field_name(column)) is not None:
            _, end = span_of(last)
            edits.append((end, end, f" AS {quote(name)}"))
    parts, done = [], 0
    for start, end, text in sorted(edits, key=lambda edit: edit[:2]):
        parts += [sql[done:start], text]
        done = end
    return "".join((*parts, sql[done:]))


def replace_calls(sql: str, stand_in: Callable[[str, str], str | None]) -> str:
    """Put expressions in the place of calls; ``stand_in`` gets the function's name and the text of its arguments, inner calls first.

    >>> replace_calls("f(g(a), 1) + 2", lambda name, arguments: f"other({arguments})" if name == "g" else None)
    'f(other(a), 1) + 2'
    """
    tokens = words_of(sql, "expression") if sql.strip() else []
    parts, done = [], 0
    for called, opening, index in zip(tokens, tokens[1:], range(1, len(tokens)), strict=False):
        end = closing_bracket(tokens, index)
        if called.start < done or end is None or not re.fullmatch(r"\w+", called.text):
            continue
        arguments = replace_calls(sql[opening.end + 1 : tokens[end].start], stand_in)
        replacement = stand_in(called.text, arguments)
        parts += [
            sql[done : called.start],
            f"{sql[called.start : opening.end + 1]}{arguments})" if replacement is None else replacement,
        ]
        done = tokens[end].end + 1
    return "".join((*parts, sql[done:]))


def _refuse_capture(column: exp.Column, replacement: str, sql: str) -> None:
    variables = lambda_variables(column)
    for inner in free_columns(parse(replacement, "expression")) if variables else ():
        if (name := inner.parts[0].name).lower() in variables:
            raise PlanError(
                f"expression `{sql}`: {column.parts[0].name} stands for `{replacement}`, whose column {name} is hidden by the"
                " lambda variable of the same name",
                hint="call the lambda variable something else",
            )


def _field_name(column: exp.Column) -> str | None:
    """The field that ``struct(a)`` names after its column, if this is such a column."""
    field = column.parent
    if not isinstance(field, exp.PropertyEQ) or field.this.meta.get("start") != column.parts[-1].meta["start"]:
        return None
    return str(field.this.name)


def _trim(sql: str) -> str:
    """The text without space and comments around it; a comment at the end would swallow what follows."""
    tokens = words_of(sql, "expression")
    return sql[tokens[0].start : tokens[-1].end + 1]


def _is_alone(tokens: list[Token], index: int) -> bool:
    """Whether a token stands between brackets or commas, so that anything may stand there."""
    opening, closing = (TokenType.L_PAREN, TokenType.COMMA), (TokenType.R_PAREN, TokenType.COMMA)
    left = index == 0 or tokens[index - 1].token_type in opening
    return left and (index + 1 == len(tokens) or tokens[index + 1].token_type in closing)


def _operand(sql: str) -> str:
    """The text in brackets, unless it is one piece already: a column, a literal, a call, or in brackets."""
    tree, tokens, text = parse(sql, "expression"), words_of(sql, "expression"), _trim(sql)
    if isinstance(tree, exp.Column | exp.Literal):
        return text
    if isinstance(tree, exp.Paren) and closing_bracket(tokens, 0) == len(tokens) - 1:
        return text
    is_call = isinstance(tree, exp.Func) and not isinstance(tree, exp.Binary | exp.Case)
    return text if is_call and closing_bracket(tokens, 1) == len(tokens) - 1 else f"({text})"
