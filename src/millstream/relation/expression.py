"""Scalar expressions and aggregates as Spark SQL text, read and checked without Spark.

What is asked of expressions elsewhere is here under one name: also what :mod:`millstream.relation.rewrite` and
:mod:`millstream.relation.syntax` do with them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping

from sqlglot import Token, TokenType, exp

from millstream.errors import PlanError
from millstream.relation.clauses import META_COLUMNS, Aggregation, Function, Named, Ordering
from millstream.relation.foreign_names import meant_aggregate, meant_text
from millstream.relation.rewrite import replace_calls, replace_columns, substitute
from millstream.relation.syntax import (
    CALLED_WITHOUT_BRACKETS,
    between_commas,
    closing_bracket,
    free_columns,
    is_column,
    lower_column,
    parse,
    plain_column,
    quote,
    words_of,
)

__all__ = [
    "AGGREGATES",
    "GENERATORS",
    "call_of",
    "check",
    "is_column",
    "lower_column",
    "parse_aggregate",
    "parse_item",
    "parse_named",
    "parse_order",
    "paths",
    "plain_column",
    "quote",
    "replace_calls",
    "replace_columns",
    "substitute",
]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_AGGREGATES: dict[str, Function] = {
    "count": "count", "sum": "sum", "avg": "avg", "mean": "avg", "min": "min", "max": "max",
    "min_by": "min_by", "first": "min_by", "max_by": "max_by", "last": "max_by",
    "collect_list": "collect_list", "array_agg": "collect_list", "collect_set": "collect_set",
    "percentile": "percentile", "median": "percentile",
    "approx_percentile": "approx_percentile", "approx_count_distinct": "approx_count_distinct",
}  # fmt: skip
_OTHER_AGGREGATES = _words(
    "any any_value approx_top_k bit_and bit_or bit_xor bitmap_and_agg"
    " bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_union corr count_if count_min_sketch covar_pop covar_samp"
    " every first_value grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg kurtosis last_value listagg"
    " mode percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count"
    " regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp"
    " string_agg theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum var_pop var_samp variance"
)
_RANKINGS = _words("counter_diff cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number")
_TIME_WINDOWS = _words("window session_window window_time")
_GENERATORS = _words(
    "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack variant_explode"
)
# aes_encrypt draws its own initialisation vector; reflect and java_method can call anything.
_UNREPEATABLE = _words(
    "aes_encrypt curdate current_catalog current_database current_date current_schema current_time current_timestamp"
    " current_timezone current_user input_file_block_length input_file_block_start input_file_name java_method"
    " localtimestamp monotonically_increasing_id now rand randn random randstr reflect session_user shuffle"
    " spark_partition_id try_reflect uniform user uuid version"
)
AGGREGATES = frozenset(_AGGREGATES) | _OTHER_AGGREGATES
"""The names of aggregates, those among them that are refused too."""
GENERATORS = _GENERATORS
_REPEAT_HINT = "a replay must give the same answer; use the event's time or _append_time"


def check(sql: str, columns: Iterable[str], what: str) -> frozenset[str]:
    """Give the columns that a scalar expression uses, as they were declared; ``what`` names the expression in errors.

    A function that is not known is taken for one of the user's own.

    >>> sorted(check("lower(Page) || transform(tags, t -> t.name)[0]", ["page", "tags", "at"], "a key"))
    ['page', 'tags']
    """
    tree = parse(sql, what)
    if isinstance(tree, exp.Alias | exp.Aliases):
        raise PlanError(f"{what} `{sql}`: expected an expression; found one with a name", hint="leave out the AS")
    _refuse_non_scalar(tree, sql, what)
    declared = {name.lower(): name for name in columns}
    used = set()
    for column in free_columns(tree):
        name = column.parts[0].name
        if name.lower() not in declared:
            raise _unknown(name, declared, sql, what)
        used.add(declared[name.lower()])
    return frozenset(used)


def paths(sql: str) -> frozenset[tuple[str, ...]]:
    """The columns that an expression uses, in lower case, each with the fields of it that are named behind dots.

    >>> sorted(paths("bid.price * 2 + size(Tags)"))
    [('bid', 'price'), ('tags',)]
    """
    tree = parse(sql, "expression")
    return frozenset(tuple(part.name.lower() for part in column.parts) for column in free_columns(tree))


def parse_named(text: str) -> Named:
    """Read ``page`` or ``amount * 2 AS twice``.

    >>> parse_named("amount * 2 AS twice")
    Named(name='twice', expression='amount * 2')
    """
    whole, name = parse_item(text)
    if name is None and (name := plain_column(whole)) is None:
        raise PlanError(
            f"column `{text}`: expected a column or an expression with a name", hint=f"write {whole} AS name"
        )
    return Named(name, whole)


def parse_item(text: str) -> tuple[str, str | None]:
    """Cut an expression from the name behind it, if it has one.

    >>> parse_item("count(*) n"), parse_item("count(*)")
    (('count(*)', 'n'), ('count(*)', None))
    """
    tree = parse(text, "column")
    tokens = words_of(text, "column")
    name = None
    if isinstance(tree, exp.Alias):
        name = str(tree.args["alias"].name)
        tokens = tokens[:-2] if tokens[-2].token_type == TokenType.ALIAS else tokens[:-1]
    elif isinstance(tree, exp.Star):
        raise PlanError("column `*`: expected one column; found all of them")
    return text[tokens[0].start : tokens[-1].end + 1], name


def parse_aggregate(name: str, text: str, columns: Iterable[str]) -> Aggregation:
    """Read one aggregate over ``columns``; its arguments stay as they were written.

    With ``FILTER (WHERE c)`` an argument becomes ``CASE WHEN c THEN … END``, null for the rows that are left out, and every
    aggregate here passes over nulls (``min_by`` and ``max_by`` over those whose order is null).

    >>> parse_aggregate("spent", "sum(price * n) FILTER (WHERE paid)", ["price", "n", "paid"])
    Aggregation(name='spent', function='sum', arguments=('CASE WHEN paid THEN price * n END',), fraction=0.0)
    """
    what = f"aggregate {name}"
    columns = tuple(columns)
    parse(text, what)
    tokens = words_of(text, what)
    call = tokens[0].text.lower()
    close = closing_bracket(tokens, 1)
    if close is None or call not in _AGGREGATES:
        found = "another expression" if close is None else repr(call)
        raise PlanError(
            f"{what} `{text}`: expected one of {', '.join(_AGGREGATES)}; found {found}",
            hint=meant_aggregate(call) or _AGGREGATE_HINT,
        )
    condition = _filter_condition(tokens[close + 1 :], text, columns, what)
    inside = tokens[2:close]
    if inside and inside[0].token_type == TokenType.DISTINCT:
        if call != "count":
            raise PlanError(f"{what} `{text}`: only count has DISTINCT", hint="collect_set(e) has each value once")
        arguments = between_commas(inside[1:], text)
        if len(arguments) != 1:
            raise PlanError(
                f"{what} `{text}`: expected one expression to count; found {len(arguments)}", hint=_STRUCT_HINT
            )
        check(arguments[0], columns, what)
        return Aggregation(name, "count_distinct", _filtered(arguments, condition), written=text.strip())
    arguments = between_commas(inside, text)
    if call == "count" and len(arguments) == 1 and (arguments[0] == "*" or arguments[0].isdigit()):
        return Aggregation(name, "count", (f"CASE WHEN {condition} THEN 1 END",) if condition else ())
    if call in ("first", "last") and len(arguments) == 1:
        raise PlanError(
            f"{what} `{text}`: {call} needs an order; rows have none of their own",
            hint=f"say the order: {call}({arguments[0]}, at)",
        )
    function = _AGGREGATES[call]
    expected = 2 if function in ("min_by", "max_by") or call.endswith("percentile") else 1
    if len(arguments) != expected:
        several = function == "count" and len(arguments) > 1
        raise PlanError(
            f"{what} `{text}`: {call} takes {expected} argument{'s' * (expected > 1)}; found {len(arguments)}",
            hint=_STRUCT_HINT if several else "count(*) counts rows" if function == "count" else "",
        )
    fraction = 0.0
    if function.endswith("percentile"):
        fraction = 0.5 if call == "median" else _fraction(arguments[1], text, what)
        arguments = arguments[:1]
    for argument in arguments:
        check(argument, columns, what)
    return Aggregation(name, function, _filtered(arguments, condition), fraction, text.strip())


def _fraction(literal: str, text: str, what: str) -> float:
    if not re.fullmatch(r"[\d.]+", literal) or not 0 <= float(literal) <= 1:
        raise PlanError(f"{what} `{text}`: expected which percentile, a number from 0 to 1; found {literal}")
    return float(literal)


def call_of(text: str, what: str) -> tuple[str, tuple[str, ...]] | None:
    """The function and the arguments of an expression that is one call and nothing else.

    >>> call_of("lag(price * n, 2)", "a look")
    ('lag', ('price * n', '2'))
    """
    parse(text, what)
    tokens = words_of(text, what)
    if closing_bracket(tokens, 1) != len(tokens) - 1:
        return None
    return tokens[0].text.lower(), between_commas(tokens[2:-1], text)


def parse_order(text: str, columns: Iterable[str], what: str) -> tuple[Ordering, ...]:
    """Read ``n DESC, at``; nulls come first when it ascends and last when it descends, as in Spark.

    >>> parse_order("n DESC, at", ["n", "at"], "order")
    (Ordering(expression='n', descending=True), Ordering(expression='at', descending=False))
    """
    columns = tuple(columns)
    if not isinstance(text, str):
        raise PlanError(f"{what}: expected an order as text; found {text!r}", hint=meant_text(text) or '"n DESC, at"')
    made = []
    for part in between_commas(words_of(text, what), text):
        words = words_of(part, what)
        descending = words[-1].text.upper() == "DESC"
        if words[-1].text.upper() in ("FIRST", "LAST"):
            raise PlanError(
                f"{what} `{text}`: nulls come first, with DESC last; found {part}", hint="leave out NULLS …"
            )
        cut = words[:-1] if words[-1].text.upper() in ("ASC", "DESC") and len(words) > 1 else words
        sql = part[cut[0].start : cut[-1].end + 1]
        check(sql, columns, what)
        made.append(Ordering(sql, descending and len(words) > 1))
    return tuple(made)


_AGGREGATE_HINT = "one aggregate a name; compute with their results in a select() after"
_STRUCT_HINT = "count one expression, such as struct(a, b), or rows: count(*)"


def _refuse_non_scalar(tree: exp.Expr, sql: str, what: str) -> None:
    """Refuse whatever does not give one value from one row, the same each time."""

    def refuse(found: str, hint: str = "") -> PlanError:
        return PlanError(f"{what} `{sql}`: expected a value of one row; found {found}", hint=hint)

    if tree.find(exp.Query):
        raise refuse("a subquery", "a pipeline's relations are its subqueries")
    if tree.find(exp.Window):
        raise refuse("a window function (OVER)", "aggregate with group_by(…).agg(…)")
    if tree.find(exp.Placeholder, exp.Parameter):
        raise refuse("a parameter", "put the value into the text")
    for name, is_call in _names(words_of(sql, what)):
        if is_call and (name in _AGGREGATES or name in _OTHER_AGGREGATES):
            raise refuse(f"the aggregate {name}", "aggregate with group_by(…).agg(…), then go on from its result")
        if is_call and name in _RANKINGS:
            raise refuse(f"the window function {name}", "aggregate with group_by(…).agg(…)")
        if is_call and name in _TIME_WINDOWS:
            raise refuse(f"the function {name}", "windows are keys: group_by(window.tumbling('at', '1 minute'))")
        if is_call and name in _GENERATORS:
            raise refuse(
                f"{name}, which makes rows", "higher-order functions such as transform and filter work on arrays"
            )
        if name in (_UNREPEATABLE if is_call else CALLED_WITHOUT_BRACKETS):
            raise refuse(f"{name}, which is not the same each time", _REPEAT_HINT)
    if tree.find(exp.Star):
        raise refuse("*", "name the columns")
    if tree.find(exp.CurrentTimestamp, exp.CurrentDate):  # unix_timestamp() and its like: a clock unless given a time
        raise refuse("a function that reads the clock", _REPEAT_HINT)


def _names(tokens: list[Token]) -> Iterator[tuple[str, bool]]:
    """Each name in the text that is not behind a dot, and whether it is called."""
    literals = (TokenType.STRING, TokenType.NUMBER)
    for index, token in enumerate(tokens):
        before = tokens[index - 1].token_type if index else None
        if token.token_type in literals or before in (TokenType.DOT, TokenType.ALIAS):
            continue
        is_call = index + 1 < len(tokens) and tokens[index + 1].token_type == TokenType.L_PAREN
        if is_call and before in (TokenType.LIKE, TokenType.ILIKE):
            continue  # LIKE ANY (…)
        if is_call or token.token_type != TokenType.IDENTIFIER:
            yield token.text.lower(), is_call


def _unknown(name: str, declared: Mapping[str, str], sql: str, what: str) -> PlanError:
    close = difflib.get_close_matches(name.lower(), declared, 1)
    shown = ", ".join(each for each in declared.values() if each not in META_COLUMNS) or "none"
    hint = f"did you mean {declared[close[0]]}?" if close else ""
    if name.lower() in META_COLUMNS:
        hint = (
            f"{name} is there directly on a stream or table; keep it with select('*', '{name} AS {name.lstrip('_')}')"
        )
    return PlanError(f"{what} `{sql}`: no column {name}; there are {shown}", hint=hint)


def _filter_condition(tokens: list[Token], text: str, columns: Iterable[str], what: str) -> str:
    """The condition of what follows an aggregate's call: FILTER (WHERE …) or nothing."""
    if not tokens:
        return ""
    if tokens[0].token_type != TokenType.FILTER or closing_bracket(tokens, 1) != len(tokens) - 1:
        found = text[tokens[0].start : tokens[-1].end + 1]
        raise PlanError(f"{what} `{text}`: expected one aggregate; found {found!r} after it", hint=_AGGREGATE_HINT)
    if tokens[2].token_type != TokenType.WHERE or len(tokens) < 5:
        raise PlanError(f"{what} `{text}`: expected FILTER (WHERE …)")
    condition = text[tokens[3].start : tokens[-2].end + 1]
    check(condition, columns, what)
    return condition


def _filtered(arguments: tuple[str, ...], condition: str) -> tuple[str, ...]:
    return tuple(f"CASE WHEN {condition} THEN {each} END" for each in arguments) if condition else arguments
