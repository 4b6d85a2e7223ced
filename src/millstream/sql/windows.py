"""Windows in time, as SQL says them: table functions in FROM, or Spark's window(…) in GROUP BY."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from millstream.errors import PlanError
from millstream.relation.nodes import WINDOW_COLUMNS, Window
from millstream.relation.relation import Relation
from millstream.relation.source_location import said_at
from millstream.sql.ast import Windowed
from millstream.sql.calls import closing
from millstream.sql.interval import duration
from millstream.sql.scope import Entry, Scope, path
from millstream.sql.tokens import Piece, Text, canonical, part, split, words
from millstream.window import hopping, session, sliding, tumbling

_CALLS = ("WINDOW", "SESSION_WINDOW")
FIELDS = {
    (call.lower(), name): column
    for call in _CALLS
    for name, column in zip(("start", "end"), WINDOW_COLUMNS, strict=True)
}
"""What window.start and window.end mean where GROUP BY has a window(…)."""
_HINT = "a span of time is written INTERVAL 10 SECONDS"
_GROUP_HINT = "GROUP BY …, window_start, window_end"


@dataclass(frozen=True, slots=True)
class InFrom:
    """Windows of a table function: of groups, which must name them, or of rows."""

    said: Windowed
    at: int

    def check(self, keys: list[str], used: bool, scope: Scope) -> None:
        """Refuse groups that are not of windows, and sessions by other keys than those of the groups."""
        if not used:
            raise self._ungrouped(scope.text)
        partition = {canonical(scope.resolve(each)) for each in self.said.partition}
        if self.said.kind != "session" and not partition:
            return
        if partition != {canonical(key) for key in keys}:
            found = ", ".join(each.sql for each in self.said.partition) or "nothing"
            message = f"{self.said.kind}: PARTITION BY {found}; expected what GROUP BY has besides the window: {', '.join(keys) or 'nothing'}"
            raise scope.text.error(self.at, message, "session(TABLE bid PARTITION BY bidder, at, INTERVAL 10 SECONDS)")

    def _ungrouped(self, text: Text) -> PlanError:
        message = f"{self.said.kind}(…) gives windows; expected window_start and window_end in GROUP BY"
        return text.error(self.at, message, _GROUP_HINT)

    def rows(self, relation: Relation, scope: Scope) -> Relation:
        """Each row with its windows, where there is no group; those of sessions depend on one."""
        if self.said.kind not in ("tumble", "hop") or self.said.partition:
            raise self._ungrouped(scope.text)
        window = self.window(scope)
        with said_at(scope.text.place(self.at)):
            return relation.windowed(window)  # type: ignore[arg-type]

    def window(self, scope: Scope) -> Window:
        """The window over the column of the relation that its time is."""
        spans = [span(scope.text, each) for each in self.said.spans]
        with said_at(scope.text.place(self.at)):
            column = scope.resolve(self.said.column)
            match self.said.kind:
                case "tumble":
                    return tumbling(column, spans[0])
                case "hop":
                    return hopping(column, size=spans[1], every=spans[0])
                case "session":
                    return session(column, spans[0])
                case "slide":
                    return sliding(column, spans[0])


def with_windows(entry: Entry) -> Entry:
    """A table with the columns of its windows."""
    return Entry(entry.alias, {**entry.columns, **{name: (name, name) for name in WINDOW_COLUMNS}})


def is_window_column(sql: str) -> bool:
    """Whether an expression is the start or the end of a window."""
    names = path(sql)
    return names is not None and len(names) == 1 and names[0].lower() in WINDOW_COLUMNS


def is_window_call(piece: Piece) -> bool:
    """Whether a key of GROUP BY is Spark's window(…) or session_window(…)."""
    found = words(piece.sql)
    return found[0].text in _CALLS and closing(found, 1) == len(found) - 1


def window_call(piece: Piece, scope: Scope) -> Window:
    """Read ``window(at, '10 seconds', '2 seconds')``, size and then how often, or ``session_window(at, '10 seconds')``."""
    found = words(piece.sql)
    arguments = split(part(piece, found[2:-1]), (",",))
    most = 2 if found[0].text == "SESSION_WINDOW" else 3
    if not 2 <= len(arguments) <= most:
        raise scope.text.error(
            piece.at,
            f"{found[0].value}: expected a time, a length{' and how often one starts' * (most > 2)}; found {len(arguments)} arguments",
            "window(at, '10 seconds', '2 seconds')",
        )
    column = scope.resolve(arguments[0])
    spans = [span(scope.text, each) for each in arguments[1:]]
    with said_at(scope.text.place(piece.at)):
        if most == 2:
            return session(column, spans[0])
        if len(spans) == 1 or spans[0] == spans[1]:
            return tumbling(column, spans[0])
        return hopping(column, size=spans[0], every=spans[1])


def span(text: Text, piece: Piece) -> timedelta:
    """A length of time, refused at its place."""
    found = duration(piece.sql)
    if found is None:
        raise text.error(piece.at, f"expected a span of time; found `{piece.sql}`", _HINT)
    return found
