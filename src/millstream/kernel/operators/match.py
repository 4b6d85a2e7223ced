"""Row patterns: the matches among the rows of each key, as far as they are known or final.

What is shown is a function of the rows so far and the mark; a batch gives what it is afterwards less what it was before. Where rows come
in the order of time and none is taken back, each key has a *resume place*: the first start whose outcome may still change. Rows from there
on are kept, those that PREV reaches before it, and what was counted on the way; all else is forgotten. Where that place is stands in
the rows themselves, bit by bit: ``_r0`` says for which searches a row lies at or behind it, ``_u0`` for which it is in nothing that was told.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from millstream.errors import PipelineError
from millstream.kernel.kernel import State
from millstream.kernel.operators.keyed_rows import ONE, WAKE, Keyed, with_key
from millstream.kernel.operators.top import in_order
from millstream.kernel.pattern.formulas import formula_type
from millstream.kernel.pattern.layout import Layout, Positions
from millstream.kernel.pattern.measures import Matches, lines, peers_first, shown
from millstream.kernel.pattern.scan import Scanner, Seen, Where
from millstream.kernel.state.store import FOREVER
from millstream.kernel.zset import WEIGHT, difference, matched, repeated, weighed
from millstream.plan.operators.match import Match
from millstream.relation.pattern import Aggregated, MatchId, MatchNumber, Navigation, Search

PATTERN = "pattern"
"""The column that names the search."""

_OLD = "_old"  # the row was kept from before the batch
_GONE = "_begun"  # of what is kept of a key beside its rows: rows before them are gone; null in rows
_BITS = 62
_LATEST = 1 << 62


class MatchKernel:
    """The kernel of :class:`~millstream.plan.operators.match.Match`."""

    def __init__(self, spec: Match) -> None:
        self.spec = spec
        self.keys = list(spec.keys) or [ONE]
        self.columns = list(
            dict.fromkeys((*self.keys, *spec.columns, *(each.column for each in spec.order), *_used(spec.searches)))
        )
        self.scanners = [Scanner(search) for search in spec.searches]
        self.forgets = spec.insert_only and spec.horizon is not None
        words = range(-(-len(spec.searches) // _BITS)) if self.forgets else range(0)
        self.behind = [f"_r{word}" for word in words]
        told = any(search.near or search.shown == "all_with_unmatched" for search in spec.searches)
        self.untold = [f"_u{word}" for word in words] if told else []
        numbered = [_has(search, MatchNumber) for search in spec.searches]
        self.numbers = [f"_n{at}" for at, each in enumerate(numbered) if each and self.forgets]
        anchored = any(scanner.automaton.reads_start for scanner in self.scanners)
        self.heads = self.forgets and (bool(self.numbers) or anchored)
        self.identified = any(_has(search, MatchId) for search in spec.searches)
        self.all_rows = any(search.shown != "one" for search in spec.searches)

    def step(self, state: State, rows: pl.DataFrame | None) -> pl.DataFrame | None:
        """Look for matches again in every key that the rows touch, and in those whose time has come."""
        if rows is None and state.after <= state.before:
            return None
        came = with_key(pl.DataFrame(schema=state.schema) if rows is None else rows, self.keys)
        if self.forgets:
            return self._step_forgetting(state, came)
        came = weighed(came, self.columns)
        keyed = Keyed(state, self.keys, came.clear())
        old = keyed.open(came)
        new = weighed(pl.concat([old, came.select(old.columns)]), self.columns) if old.height else came
        before, _, _ = self._looked(self._layout(repeated(old)), None, state.before)
        layout = self._layout(repeated(new))
        after, wheres, seen = self._looked(layout, None, state.after)
        keyed.close(new, self._wake(layout, layout.first, wheres, seen, state.after))
        return difference(before, after)

    def _step_forgetting(self, state: State, came: pl.DataFrame) -> pl.DataFrame:
        spec = self.spec
        assert spec.horizon is not None  # noqa: S101
        came = repeated(came) if WEIGHT in came.columns else came
        came = came.select(
            *self.columns,
            *(pl.lit((1 << _BITS) - 1, pl.Int64).alias(name) for name in (*self.behind, *self.untold)),
            *(pl.lit(None, pl.Int64).alias(name) for name in self.numbers),
            *([pl.lit(None, pl.Boolean).alias(_GONE)] if self.heads else []),
        )
        keyed = Keyed(state, self.keys, came.clear())
        old = keyed.open(came)
        heads = old.filter(pl.col(_GONE).is_not_null()) if self.heads else old.clear()
        old = old.filter(pl.col(_GONE).is_null()) if self.heads else old
        both = pl.concat([old.with_columns(pl.lit(True).alias(_OLD)), came.with_columns(pl.lit(False).alias(_OLD))])
        layout = self._layout(both)
        span = spec.horizon.span
        if spec.emit == "final" and not span:  # what was final is behind the resume place
            before = self._nothing(layout)
        else:
            was = Layout.of(layout.rows.filter(_OLD), self.keys, self._time(layout.rows))
            before, _, _ = self._looked(was, self._wheres(was, heads), state.before)
        settled = FOREVER if state.after >= FOREVER else state.after - span
        after, wheres, seen = self._looked(layout, self._wheres(layout, heads), state.after, settled)
        first = self._first_kept(layout, wheres)
        keyed.close(self._kept(layout, wheres, first, heads), self._wake(layout, first, wheres, seen, state.after))
        return difference(before, after)

    def _layout(self, rows: pl.DataFrame) -> Layout:
        return Layout.of(
            in_order(rows, self.spec.order, [*self.columns, *self.behind, *self.untold], self.keys),
            self.keys,
            self._time(rows),
        )

    def _time(self, rows: pl.DataFrame) -> str | None:
        """The column of time that the order begins with."""
        if not self.spec.order or self.spec.order[0].descending:
            return None
        name = self.spec.order[0].column
        return name if isinstance(rows.schema[name], pl.Datetime | pl.Date) else None

    def _wheres(self, layout: Layout, heads: pl.DataFrame) -> list[Where]:
        """Where each search resumes in each key."""
        numbers: dict[str, Positions] = {}
        begun = np.zeros(len(layout.first), np.bool_)
        if self.heads:
            keys = layout.rows.select(self.keys)[layout.first]
            found = matched(
                keys, heads.select(*self.keys, *self.numbers, _GONE), self.keys, "left", maintain_order="left"
            )
            numbers = {name: found[name].fill_null(0).to_numpy() for name in self.numbers}
            begun = found[_GONE].fill_null(False).to_numpy()
        none = np.zeros(len(layout.first), np.int64)
        made = []
        for at in range(len(self.scanners)):
            bit, word = 1 << at % _BITS, at // _BITS
            ahead = layout.rows[self.behind[word]].to_numpy() & bit == 0
            resume = layout.first + _counts(layout, ahead)
            told = resume
            if self.untold:
                told = layout.first + _counts(layout, ahead | (layout.rows[self.untold[word]].to_numpy() & bit == 0))
            made.append(Where(resume, numbers.get(f"_n{at}", none), told, begun))
        return made

    def _looked(
        self, layout: Layout, wheres: list[Where] | None, mark: int, settled: int | None = None
    ) -> tuple[pl.DataFrame, list[Where], list[Seen]]:
        """What is shown of these rows at a mark, and where searches resume then."""
        final = self.spec.emit == "final"
        if wheres is None:
            none = np.zeros(len(layout.first), np.int64)
            wheres = [Where(layout.first, none, layout.first, none > 0)] * len(self.scanners)
        frames, seen = [], []
        for scanner, where in zip(self.scanners, wheres, strict=True):
            if scanner.search.within is not None and layout.times is None:
                raise PipelineError(
                    f"pattern {scanner.search.name}: WITHIN needs an order that begins with a time, ascending"
                )
            found = scanner.scan(layout, where, mark, settled, final=final)
            frames.append(self._shown(scanner, layout, where, found))
            seen.append(found)
        return pl.concat(frames), [each.where for each in seen], seen

    def _shown(self, scanner: Scanner, layout: Layout, where: Where, seen: Seen) -> pl.DataFrame:
        """The rows of the output for what a search has found."""
        search, spec = scanner.search, self.spec
        matches = Matches.of(seen.found)
        unmatched = (
            _unmatched(layout, where, matches, seen) if search.shown == "all_with_unmatched" else layout.first[:0]
        )
        made = lines(search, scanner.automaton, matches, unmatched)
        rows = layout.rows
        columns = [rows[name].gather(pl.Series(made.row).cast(pl.UInt32)) for name in spec.keys]
        height = len(made.row)
        if self._names_pattern:
            columns.append(pl.repeat(search.name, height, dtype=pl.String, eager=True).alias(PATTERN))
        for name in self._shown_columns:
            values = rows[name]
            if search.shown == "one":
                columns.append(values.clear(height))
            else:
                columns.append(values.gather(pl.Series(made.row).cast(pl.UInt32)))
        return pl.DataFrame([*columns, *shown(search, scanner.automaton, layout, spec.order, matches, made)])

    @property
    def _names_pattern(self) -> bool:
        return self.spec.named or len(self.spec.searches) > 1

    @property
    def _shown_columns(self) -> list[str]:
        return [name for name in self.spec.columns if name not in self.spec.keys] if self.all_rows else []

    def _nothing(self, layout: Layout) -> pl.DataFrame:
        return pl.DataFrame(schema=schema_of(self.spec, layout.rows.schema))

    def _first_kept(self, layout: Layout, wheres: list[Where]) -> Positions:
        """The first row of each key that is kept."""
        found = layout.end
        for scanner, where in zip(self.scanners, wheres, strict=True):
            resume = where.resume
            if self.identified and layout.rows.height:  # a match that begins there counts its peers
                resume = peers_first(layout, self.spec.order, np.minimum(resume, layout.end - 1))
                resume = np.where(where.resume < layout.end, resume, where.resume)
            found = np.minimum(found, resume - scanner.before)
        return np.maximum(found, layout.first)

    def _kept(self, layout: Layout, wheres: list[Where], first: Positions, heads: pl.DataFrame) -> pl.DataFrame:
        """The rows that are kept, with where the searches resume."""
        at = np.arange(layout.rows.height)
        chosen = np.flatnonzero(at >= first[layout.group]) if len(at) else at
        group = layout.group[chosen]
        rows = layout.rows.drop(_OLD)[chosen]
        made = [
            _flags([where.resume for where in wheres], chosen, group, name, word)
            for word, name in enumerate(self.behind)
        ]
        made += [
            _flags([where.told for where in wheres], chosen, group, name, word) for word, name in enumerate(self.untold)
        ]
        rows = rows.with_columns(made)
        if not self.heads:
            return rows
        keys = layout.rows.select(self.keys)[layout.first]
        begun = wheres[0].begun | (first > layout.first)
        told = keys.with_columns(
            *(pl.Series(name, wheres[int(name[2:])].number) for name in self.numbers), pl.Series(_GONE, begun)
        )
        rest = matched(heads, keys, self.keys, "anti").select(told.columns)
        return pl.concat([rows, told, rest], how="diagonal").select(rows.columns)

    def _wake(
        self, layout: Layout, first: Positions, wheres: list[Where], seen: list[Seen], mark: int
    ) -> pl.DataFrame | None:
        """When each key wants to be looked at again: when a row or a start of it becomes certain, and when all of it can go."""
        spec, times = self.spec, layout.times
        if times is None and spec.emit != "final":
            return None
        wake = np.full(len(layout.first), _LATEST + 1)
        at = np.arange(layout.rows.height)
        open_ = np.minimum.reduce([layout.end, *(where.resume for where in wheres)])
        kept = at >= open_[layout.group] if len(at) else np.zeros(0, np.bool_)
        if spec.emit == "final" and mark < FOREVER:
            wake[layout.group[kept]] = FOREVER
            if times is not None:
                later = kept & (times >= mark)
                np.minimum.at(wake, layout.group[later], times[later] + 1)
        for scanner, where, each in zip(self.scanners, wheres, seen, strict=True):
            within, timed = scanner.search.within, scanner.search.near or scanner.automaton.reads_expiry
            if within is None or times is None or not (timed or spec.emit == "final"):
                continue
            starts = each.candidates[each.candidates >= where.resume[layout.group[each.candidates]]]
            over = times[starts] + within
            np.minimum.at(wake, layout.group[starts[over > mark]], over[over > mark])
        longest = max((search.within or 0 for search in spec.searches), default=0)
        if self.forgets and times is not None and all(search.within is not None for search in spec.searches):
            assert spec.horizon is not None  # noqa: S101
            gone = times[layout.end - 1] + longest + spec.horizon.span if len(at) else times
            some = (gone > mark) & (first < layout.end)
            wake[some] = np.minimum(wake[some], gone[some])
        keys = layout.rows.select(self.keys)[layout.first]
        return keys.with_columns(pl.Series(WAKE, wake)).filter(pl.col(WAKE) <= _LATEST)


def schema_of(spec: Match, schema: pl.Schema) -> pl.Schema:
    """The columns and types of what the kernel gives for input of these types."""
    made = {name: schema[name] for name in spec.keys}
    if spec.named or len(spec.searches) > 1:
        made[PATTERN] = pl.String()
    if any(search.shown != "one" for search in spec.searches):
        made |= {name: schema[name] for name in spec.columns if name not in spec.keys}
    return pl.Schema(made | {each.name: formula_type(each, schema) for each in spec.searches[0].measures})


def _used(searches: Sequence[Search]) -> list[str]:
    """The columns that slots have for arguments."""
    found = []
    for search in searches:
        for formula in (*search.conditions, *search.measures):
            for _, slot in formula.slots:
                if isinstance(slot, Navigation):
                    found.append(slot.argument)
                elif isinstance(slot, Aggregated):
                    found += slot.arguments
    return found


def _has(search: Search, kind: type) -> bool:
    return any(isinstance(slot, kind) for each in search.measures for _, slot in each.slots)


def _counts(layout: Layout, flags: Positions) -> Positions:
    """For each key how many of its rows are flagged."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(flags)])
    found: Positions = before[layout.end] - before[layout.first]
    return found


def _flags(places: list[Positions], rows: Positions, group: Positions, name: str, word: int) -> pl.Series:
    """For each row as bits which of some places of its key it lies at or behind; bits of no search are set."""
    some = places[word * _BITS : (word + 1) * _BITS]
    made = np.full(len(rows), ((1 << _BITS) - 1) & ~((1 << len(some)) - 1), np.int64)
    for bit, place in enumerate(some):
        made |= (rows >= place[group]).astype(np.int64) << bit
    return pl.Series(name, made, pl.Int64)


def _unmatched(layout: Layout, where: Where, matches: Matches, seen: Seen) -> Positions:
    """The rows of which it is known that they are in no match."""
    change = np.zeros(layout.rows.height + 1, np.int64)
    np.add.at(change, matches.start, 1)
    np.add.at(change, np.maximum(matches.end, matches.start + 1), -1)
    at = np.arange(layout.rows.height)
    free = np.cumsum(change)[:-1] == 0
    from_, until = np.maximum(where.resume, where.told), seen.until
    found: Positions = at[free & (at >= from_[layout.group]) & (at < until[layout.group])]
    return found
