"""Scalar expressions and aggregates as Spark SQL text: read, checked and rewritten, without Spark.

Text is only ever cut at the places where its tokens begin and end, and never written anew from a parsed tree: what Spark
gets is what the user wrote, apart from the columns that were replaced. The parser is there to say which words are columns.
Names of columns compare without regard to case, as in Spark.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from sqlglot import ParseError, Token, TokenError, TokenType, exp, parse_one

from millstream.errors import PlanError
from millstream.relation.clauses import META_COLUMNS, Aggregation, Function, Named, Ordering
from millstream.relation.foreign_names import meant_aggregate, meant_text
from millstream.relation.schema import DIALECT, tokens_of


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
_UNREPEATABLE_WORDS = _words("current_date current_time current_timestamp current_user localtimestamp session_user")
AGGREGATES = frozenset(_AGGREGATES) | _OTHER_AGGREGATES
"""The names of aggregates, those among them that are refused too."""
GENERATORS = _GENERATORS
_REPEAT_HINT = "a replay must give the same answer; use the event's time or _append_time"
_PREFIX = "SELECT "  # so that a column named like a statement (comment, show, set) is read as a column


def check(sql: str, columns: Iterable[str], what: str) -> frozenset[str]:
    """Give the columns that a scalar expression uses, as they were declared; ``what`` names the expression in errors.

    A function that is not known is taken for one of the user's own.

    >>> sorted(check("lower(Page) || transform(tags, t -> t.name)[0]", ["page", "tags", "at"], "a key"))
    ['page', 'tags']
    """
    tree = _parse(sql, what)
    if isinstance(tree, exp.Alias | exp.Aliases):
        raise PlanError(f"{what} `{sql}`: expected an expression; found one with a name", hint="leave out the AS")
    _refuse_non_scalar(tree, sql, what)
    declared = {name.lower(): name for name in columns}
    used = set()
    for column in _free_columns(tree):
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
    tree = _parse(sql, "expression")
    return frozenset(tuple(part.name.lower() for part in column.parts) for column in _free_columns(tree))


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
    tree = _parse(sql, "expression")
    tokens = _tokens(sql, "expression")
    at = {token.start: index for index, token in enumerate(tokens)}
    edits: list[tuple[int, int, str]] = []
    for column in _free_columns(tree):
        start, _ = _span(column.parts[0])
        found = stand_in(tuple(part.name for part in column.parts), start)
        if found is None:
            continue
        count, replacement = found
        last, (inner, end) = column.parts[-1], _span(column.parts[count - 1])
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
            _, end = _span(last)
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
    tokens = _tokens(sql, "expression") if sql.strip() else []
    parts, done = [], 0
    for called, opening, index in zip(tokens, tokens[1:], range(1, len(tokens)), strict=False):
        end = _closing(tokens, index)
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
    tree = _parse(text, "column")
    tokens = _tokens(text, "column")
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
    _parse(text, what)
    tokens = _tokens(text, what)
    call = tokens[0].text.lower()
    close = _closing(tokens, 1)
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
        arguments = _arguments(inside[1:], text)
        if len(arguments) != 1:
            raise PlanError(
                f"{what} `{text}`: expected one expression to count; found {len(arguments)}", hint=_STRUCT_HINT
            )
        check(arguments[0], columns, what)
        return Aggregation(name, "count_distinct", _filtered(arguments, condition), written=text.strip())
    arguments = _arguments(inside, text)
    if call == "count" and len(arguments) == 1 and (arguments[0] == "*" or arguments[0].isdigit()):
        return Aggregation(name, "count", (f"CASE WHEN {condition} THEN 1 END",) if condition else ())
    if call in ("first", "last") and len(arguments) == 1:
        raise PlanError(
            f"{what} `{text}`: {call} of what order? Rows have none of their own",
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
    _parse(text, what)
    tokens = _tokens(text, what)
    if _closing(tokens, 1) != len(tokens) - 1:
        return None
    return tokens[0].text.lower(), _arguments(tokens[2:-1], text)


def parse_order(text: str, columns: Iterable[str], what: str) -> tuple[Ordering, ...]:
    """Read ``n DESC, at``; nulls come first when it ascends and last when it descends, as in Spark.

    >>> parse_order("n DESC, at", ["n", "at"], "order")
    (Ordering(expression='n', descending=True), Ordering(expression='at', descending=False))
    """
    columns = tuple(columns)
    if not isinstance(text, str):
        raise PlanError(f"{what}: expected an order as text; found {text!r}", hint=meant_text(text) or '"n DESC, at"')
    made = []
    for part in _arguments(_tokens(text, what), text):
        words = _tokens(part, what)
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


@lru_cache(maxsize=4096)  # a chain asks hundreds of times about a few names
def plain_column(sql: str) -> str | None:
    """Give the column's name if the expression is nothing but a column.

    >>> plain_column("`unit price`"), plain_column("price + 1"), plain_column("order.price")
    ('unit price', None, None)
    """
    tree = _parse(sql, "expression")
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
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name.lower() not in _UNREPEATABLE_WORDS:
        try:
            if plain_column(name) == name:
                return name
        except PlanError:
            pass  # a keyword
    return "`" + name.replace("`", "``") + "`"


_AGGREGATE_HINT = "one aggregate a name; compute with their results in a select() after"
_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET)
_STRUCT_HINT = "count one expression, such as struct(a, b), or rows: count(*)"


def _tokens(sql: str, what: str) -> list[Token]:
    try:
        tokens = tokens_of(sql)
    except TokenError as error:
        raise PlanError(f"{what} `{sql}`: this is not Spark SQL (is a quote or comment left open?)") from error
    if not tokens:
        raise PlanError(f"{what}: expected a Spark SQL expression; found nothing")
    return tokens


def _parse(sql: str, what: str) -> exp.Expr:
    """Read one expression, or one with a name."""
    if not isinstance(sql, str):
        raise PlanError(f"{what}: expected a Spark SQL expression as text; found {sql!r}", hint=meant_text(sql))
    tokens = _tokens(sql, what)
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
    for name, is_call in _names(_tokens(sql, what)):
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
        if name in (_UNREPEATABLE if is_call else _UNREPEATABLE_WORDS):
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


def _free_columns(tree: exp.Expr) -> Iterator[exp.Column]:
    """The columns in order of their place; a lambda's variables are none."""
    found = [column for column in tree.find_all(exp.Column) if isinstance(column.parts[0], exp.Identifier)]
    for column in sorted(found, key=lambda each: _span(each.parts[0])):
        if column.parts[0].name.lower() not in _lambda_variables(column):
            yield column


def _lambda_variables(node: exp.Expr) -> frozenset[str]:
    names: set[str] = set()
    ancestor = node.find_ancestor(exp.Lambda)
    while ancestor is not None:
        names |= {variable.name.lower() for variable in ancestor.expressions}
        ancestor = ancestor.find_ancestor(exp.Lambda)
    return frozenset(names)


def _span(identifier: exp.Expr) -> tuple[int, int]:
    """Where in the text an identifier is, quotes included."""
    return identifier.meta["start"] - len(_PREFIX), identifier.meta["end"] + 1 - len(_PREFIX)


def _unknown(name: str, declared: Mapping[str, str], sql: str, what: str) -> PlanError:
    close = difflib.get_close_matches(name.lower(), declared, 1)
    shown = ", ".join(each for each in declared.values() if each not in META_COLUMNS) or "none"
    hint = f"did you mean {declared[close[0]]}?" if close else ""
    if name.lower() in META_COLUMNS:
        hint = (
            f"{name} is there directly on a stream or table; keep it with select('*', '{name} AS {name.lstrip('_')}')"
        )
    return PlanError(f"{what} `{sql}`: no column {name}; there are {shown}", hint=hint)


def _refuse_capture(column: exp.Column, replacement: str, sql: str) -> None:
    variables = _lambda_variables(column)
    for inner in _free_columns(_parse(replacement, "expression")) if variables else ():
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
    tokens = _tokens(sql, "expression")
    return sql[tokens[0].start : tokens[-1].end + 1]


def _is_alone(tokens: list[Token], index: int) -> bool:
    """Whether a token stands between brackets or commas, so that anything may stand there."""
    opening, closing = (TokenType.L_PAREN, TokenType.COMMA), (TokenType.R_PAREN, TokenType.COMMA)
    left = index == 0 or tokens[index - 1].token_type in opening
    return left and (index + 1 == len(tokens) or tokens[index + 1].token_type in closing)


def _operand(sql: str) -> str:
    """The text in brackets, unless it is one piece already: a column, a literal, a call, or in brackets."""
    tree, tokens, text = _parse(sql, "expression"), _tokens(sql, "expression"), _trim(sql)
    if isinstance(tree, exp.Column | exp.Literal):
        return text
    if isinstance(tree, exp.Paren) and _closing(tokens, 0) == len(tokens) - 1:
        return text
    is_call = isinstance(tree, exp.Func) and not isinstance(tree, exp.Binary | exp.Case)
    return text if is_call and _closing(tokens, 1) == len(tokens) - 1 else f"({text})"


def _closing(tokens: list[Token], opening: int) -> int | None:
    """The bracket that closes the one at ``opening``."""
    if len(tokens) <= opening or tokens[opening].token_type != TokenType.L_PAREN:
        return None
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index].token_type == TokenType.L_PAREN) - (tokens[index].token_type == TokenType.R_PAREN)
        if depth == 0:
            return index
    return None


def _arguments(tokens: list[Token], text: str) -> tuple[str, ...]:
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


def _filter_condition(tokens: list[Token], text: str, columns: Iterable[str], what: str) -> str:
    """The condition of what follows an aggregate's call: FILTER (WHERE …) or nothing."""
    if not tokens:
        return ""
    if tokens[0].token_type != TokenType.FILTER or _closing(tokens, 1) != len(tokens) - 1:
        found = text[tokens[0].start : tokens[-1].end + 1]
        raise PlanError(f"{what} `{text}`: expected one aggregate; found {found!r} after it", hint=_AGGREGATE_HINT)
    if tokens[2].token_type != TokenType.WHERE or len(tokens) < 5:
        raise PlanError(f"{what} `{text}`: expected FILTER (WHERE …)")
    condition = text[tokens[3].start : tokens[-2].end + 1]
    check(condition, columns, what)
    return condition


def _filtered(arguments: tuple[str, ...], condition: str) -> tuple[str, ...]:
    return tuple(f"CASE WHEN {condition} THEN {each} END" for each in arguments) if condition else arguments
