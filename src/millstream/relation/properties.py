"""What can be said of a relation by looking at its nodes: what tells its rows apart, which column is its time, what it is made of.

Nothing here refuses anything; whoever asks decides what the answer means.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from millstream.relation import expression
from millstream.relation.nodes import (
    META_COLUMNS,
    WINDOW_COLUMNS,
    Aggregate,
    Deduplicate,
    Emit,
    Explode,
    Hopping,
    Join,
    MapGroups,
    Node,
    Over,
    Select,
    Sliding,
    Source,
    Top,
    Tumbling,
    Union,
    Where,
    Windowed,
    inputs_of,
    output_columns,
    sources_of,
)


def is_stream(node: Node) -> bool:
    """Whether its rows are facts that happened, rather than the present rows of a table, a group or a join of those."""
    match node:
        case Source():
            return node.kind == "stream"
        case Aggregate() | Top() | MapGroups():
            return False
        case Join():
            both = node.regular and node.how not in ("semi", "anti")
            return is_stream(node.left) or (both and is_stream(node.right))
        case Union():
            return all(map(is_stream, node.inputs))
        case _:
            return is_stream(node.input)


def is_insert_only(node: Node, emit: Emit = "changes") -> bool:
    """Whether none of its rows is ever taken back; of final rows none is, if nothing that comes late amends them."""
    match node:
        case Source():
            return node.kind == "stream"
        case Where() | Select() | Explode() | Windowed():
            return is_insert_only(node.input, emit)
        case Union():
            return all(is_insert_only(each, emit) for each in node.inputs)
        case Join():
            if node.within or node.regular:
                return node.how in ("inner", "semi") and all(is_insert_only(each, emit) for each in inputs_of(node))
            return node.latest and is_insert_only(node.left, emit)
        case Aggregate() | Deduplicate() | Over():
            return emit == "final" and ends(node) and not lateness(node)
        case _:
            return False


def event_time(node: Node) -> str | None:
    """The column of a stream's event time, as long as it is there, under whatever name, unchanged and never null.

    That of a join is its left's, of a right join its right's; a full join has none, and neither has a regular one, whose
    rows may appear at any time after those that they are made of.
    """
    match node:
        case Source():
            return node.time.column if node.time else None
        case Where():
            return event_time(node.input)
        case Select():
            name = event_time(node.input)
            kept = [each.name for each in node.columns if name and is_column(each.expression, name)]
            return name if name in kept else next(iter(kept), None)
        case Join() if is_stream(node) and node.how != "full" and not node.regular:
            return event_time(node.right if node.how == "right" else node.left)
        case Deduplicate() | Explode():
            return event_time(node.input)
        case Over():
            return event_time(node.input) if is_final(node) else None
        case Union():
            names = {event_time(each) for each in node.inputs}
            return names.pop() if len(names) == 1 else None
        case _:
            return None


def settled(node: Node) -> dict[str, timedelta]:
    """Columns that tell when a row can change no more: as soon as the mark is beyond the time there and this span."""
    match node:
        case Aggregate(window=Tumbling() | Hopping() as window) | Windowed(window=window):
            late = lateness(node)
            return {WINDOW_COLUMNS[0]: window.size + late, WINDOW_COLUMNS[1]: late}
        case Aggregate() if node.window:
            return {WINDOW_COLUMNS[1]: lateness(node)}
        case Aggregate(keys=keys) | MapGroups(key=keys):
            names = {(expression.plain_column(each.expression) or "").lower(): each.name for each in keys}
            if isinstance(node, Aggregate):  # only windows: of each event's own time there is a group for every event
                names.pop((event_time(node.input) or "").lower(), None)
            return {names[name.lower()]: span for name, span in settled(node.input).items() if name.lower() in names}
        case Where() | Explode():
            return settled(node.input)
        case Select():
            known = {name.lower(): span for name, span in settled(node.input).items()}
            plain = {each.name: (expression.plain_column(each.expression) or "").lower() for each in node.columns}
            return {name: known[column] for name, column in plain.items() if column in known}
        case Over() if _in_time(node):
            return settled(node.input)
        case Join() if node.regular:
            return _met(node)
        case Top(per=texts) | Over(partition=texts):
            return _of_keys(node.input, texts)
        case _:
            name = event_time(node)
            return {name: lateness(node)} if name else {}


def _of_keys(node: Node, keys: tuple[str, ...]) -> dict[str, timedelta]:
    """The keys of groups of rows that tell when these can change no more."""
    plain = {(expression.plain_column(each) or "").lower() for each in keys}
    return {name: span for name, span in settled(node).items() if name.lower() in plain}


def meetings(node: Join) -> dict[int, timedelta]:
    """Which equalities of a join are of times that tell on both sides when a row can change no more, and how long after."""
    sides = [{name.lower(): span for name, span in settled(each).items()} for each in inputs_of(node)]
    made = {}
    for index, each in enumerate(node.on):
        names = [(expression.plain_column(text) or "").lower() for text in (each.left, each.right)]
        if all(name in side for name, side in zip(names, sides, strict=True)):
            made[index] = max(side[name] for name, side in zip(names, sides, strict=True))
    return made


def _met(node: Join) -> dict[str, timedelta]:
    """The columns of a join that tell when a row can change no more: times that meet, but for those that may be null."""
    names = {name.lower(): name for name in output_columns(node)}
    left_null, right_null = node.nullable
    right_null |= node.how in ("semi", "anti")  # its columns are not there, and the left may have some of these names
    found: dict[str, timedelta] = {}
    for index, span in meetings(node).items():
        each = node.on[index]
        shown = [text for text, null in ((each.left, left_null), (each.right, right_null)) if not null or each.name]
        plain = [(expression.plain_column(text) or "").lower() for text in shown]
        found |= {names[name]: span for name in plain if name in names}
    return found


def _in_time(node: Over) -> bool:
    """Whether a row depends only on rows that are not after it, in time."""
    first = node.order[0] if node.order else None
    known = {name.lower() for name in settled(node.input)}
    return (
        first is not None
        and not first.descending
        and (expression.plain_column(first.expression) or "").lower() in known
        and all(each.function != "lead" and (each.frame is None or each.frame.after == 0) for each in node.looks)
    )


def is_final(node: Over) -> bool:
    """Whether a row is what it is as soon as the mark has passed its event time."""
    return is_column(node.order[0].expression, event_time(node.input) or "") and _in_time(node) if node.order else False


def is_bounded(node: Node) -> bool:
    """Whether what is kept for this node, not for those below, stops growing on endless input."""
    match node:
        case Source():
            return node.kind == "stream"
        case Aggregate():
            return node.window is not None or bool(settled(node))
        case Deduplicate():
            return node.within is not None
        case Top():
            return bool(settled(node))
        case MapGroups():
            return bool(settled(node))
        case Over():
            frames = [each.frame for each in node.looks]
            near = all(each and each.kind == "range" and None not in (each.before, each.after) for each in frames)
            known = {name.lower() for name in settled(node.input)}
            by_time = bool(node.order) and (expression.plain_column(node.order[0].expression) or "").lower() in known
            return (by_time and near) or bool(_of_keys(node.input, node.partition))
        case Join():
            return node.within is not None or (node.regular and bool(meetings(node)))
        case _:
            return True


def natural_key(node: Node) -> tuple[str, ...]:
    """The columns that tell a relation's rows apart; none for a stream, or where a select left out one of them."""
    match node:
        case Source():
            return node.key if node.kind == "table" else ()
        case Where():
            return natural_key(node.input)
        case Select():
            names: dict[str, str] = {}
            for each in node.columns:
                names.setdefault((expression.plain_column(each.expression) or "").lower(), each.name)
            key = [names.get(name.lower()) for name in natural_key(node.input)]
            return tuple(name for name in key if name) if None not in key else ()
        case Aggregate(window=Sliding()):
            return ()  # two events of one key and time have a row each
        case Aggregate():
            return (*(key.name for key in node.keys), *(WINDOW_COLUMNS[:1] if node.window else ()))
        case Join():
            left, right = natural_key(node.left), natural_key(node.right)
            if is_stream(node) or not left or (not right and node.how not in ("semi", "anti")):
                return ()
            if node.how in ("semi", "anti"):
                return left
            if node.how == "full" and not _apart(node, left, right):
                return ()
            merged = {name.lower(): name for name in node.merged}
            return tuple(dict.fromkeys((*left, *(merged.get(name.lower(), name) for name in right))))
        case Over() | Top():
            return natural_key(node.input)
        case _:
            return ()


def _apart(node: Join, left: tuple[str, ...], right: tuple[str, ...]) -> bool:
    """Whether the keys of both sides tell a row of the left without partner from one of the right: each has nulls for the other.

    A column of one side does, if it is never null there. So do columns that are one of both, if they are all that is compared:
    rows that are equal in them are partners, but for nulls, which match nothing.
    """
    merged = _lower(node.merged)
    known = [_lower(never_null(each)) for each in inputs_of(node)]
    keys = [_lower(each) for each in (left, right)]
    if any((key & names) - merged for key, names in zip(keys, known, strict=True)):
        return True
    return all(each.name.lower() in (keys[0] | keys[1]) & (known[0] | known[1]) for each in node.on)


def never_null(node: Node) -> frozenset[str]:
    """Columns that have a value in every row: a table's key, an event time, and what is made of these as it is."""
    match node:
        case Source():
            return frozenset(node.key if node.kind == "table" else [node.time.column] if node.time else [])
        case Select(columns=columns) | Aggregate(keys=columns) | MapGroups(key=columns):
            known = _lower(never_null(node.input))
            found = {each.name for each in columns if (expression.plain_column(each.expression) or "").lower() in known}
            return frozenset(found | set(WINDOW_COLUMNS if isinstance(node, Aggregate) and node.window else ()))
        case Windowed():
            return never_null(node.input) | frozenset(WINDOW_COLUMNS)
        case Join():
            left, right = (never_null(each) for each in inputs_of(node))
            both = frozenset(name for name in node.merged if {name.lower()} <= _lower(left) & _lower(right))
            left, right = (
                frozenset() if null else each for each, null in zip((left, right), node.nullable, strict=True)
            )
            return left if node.how in ("semi", "anti") else left | right | both
        case Union():
            return frozenset()
        case _:
            return never_null(node.input)


def _lower(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}


def windows_below(node: Top) -> Windowed | None:
    """The windows that the groups of a top are of, each of one: none of a group's rows is final before all of them are."""
    names, below = {(expression.plain_column(each) or "").lower() for each in node.per}, node.input
    while isinstance(below, Where | Select):
        if isinstance(below, Select):
            plain = {
                each.name.lower(): (expression.plain_column(each.expression) or "").lower() for each in below.columns
            }
            names = {plain.get(name, "") for name in names}
        below = below.input
    return below if isinstance(below, Windowed) and names & set(WINDOW_COLUMNS) else None


def has_window(node: Node) -> bool:
    """Whether there is anything in it whose rows become final: a windowed aggregate, or rows that are told apart by time."""
    return ends(node) or any(map(has_window, inputs_of(node)))


def ends(node: Node) -> bool:
    """Whether the rows of this node, not of those below, become final."""
    return (
        (isinstance(node, Aggregate) and node.window is not None)
        or isinstance(node, Deduplicate | Windowed)
        or (isinstance(node, Over) and is_final(node))
    )


def has_aggregate(node: Node) -> bool:
    """Whether its rows are made by kernels, so that they are not those of one source."""
    return not isinstance(node, Source | Where | Select | Windowed) or any(map(has_aggregate, inputs_of(node)))


def lateness(node: Node) -> timedelta:
    """How late a row may be and still be admitted: the most that any of its streams allows."""
    return max((source.time.lateness for source in sources_of(node) if source.time), default=timedelta(0))


def visible(node: Node) -> tuple[str, ...]:
    """What an expression over a relation may use: its columns, and directly on a source what a record has besides."""
    bottom = node
    while isinstance(bottom, Where):
        bottom = bottom.input
    return (*output_columns(node), *(META_COLUMNS if isinstance(bottom, Source) else ()))


def is_column(sql: str, name: str) -> bool:
    """Whether an expression is nothing but this column."""
    return (expression.plain_column(sql) or "").lower() == name.lower()
