"""A view: a relation under a name, and what is stored of it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from millstream.address import NOWHERE
from millstream.errors import UnknownView
from millstream.relation.foreign_names import view_error
from millstream.relation.nodes import Emit, Node, Place, Policy, output_columns
from millstream.relation.relation import Relation

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from millstream.relation.sealed import Origins
    from millstream.store import StoreReader
    from millstream.store.contract import Offsets
    from millstream.vault.vault import Vault


@dataclass(frozen=True, slots=True)
class View:
    """A relation under a name, kept up to date in a store; its methods read what is stored there now.

    ``key`` are the columns that identify a row. Without any, a row is identified by all of it and has a count (or, directly
    over a stream, by where in the log it came from).

    :param name: its name
    :param node: the plan of its relation
    :param to: the address of its store
    :param emit: ``"changes"`` or ``"final"``
    :param key: the columns that identify a row
    :param place: where it was defined
    :param pipeline: the name of its pipeline
    :param unbounded: whether it may keep something of every event for ever
    :param refused: what happens to a row that the store cannot hold
    :param kept: whether its rows are stored
    :raises UnknownView: by its methods, if it is kept nowhere or was never written
    :raises ViewStoreUnavailable: if the store is not there

    >>> from millstream import Pipeline
    >>> shop = Pipeline("shop")
    >>> shop.view("pages", shop.stream("clicks", "page string").group_by("page").agg(n="count(*)")).columns
    ('page', 'n')
    """

    name: str
    node: Node = field(repr=False)
    to: str
    emit: Emit
    key: tuple[str, ...]
    place: Place = field(compare=False)
    pipeline: str
    unbounded: bool = False
    """Whether it may keep something of every event for ever."""
    refused: Policy = "stop"
    """What happens to a row that the store cannot hold."""
    kept: bool = True
    """Whether its rows are stored in ``to``; if not, only its changes go to its sinks."""

    @property
    def where(self) -> str:
        """Where its rows are: an address, or nowhere."""
        return self.to if self.kept else NOWHERE

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, in order."""
        return output_columns(self.node)

    def _repr_html_(self) -> str:
        from millstream.notebook import view_html

        return view_html(self)

    def refuse_unkept(self) -> None:
        """Raise UnknownView if it is kept nowhere, so that there are no rows to read.

        >>> from millstream import Pipeline
        >>> shop = Pipeline("shop")
        >>> shop.view("pages", shop.stream("clicks", "page string"), to="nowhere").refuse_unkept()
        Traceback (most recent call last):
        ...
        millstream.errors.UnknownView: view pages of pipeline shop is kept nowhere: its changes go to its sinks, its rows are not stored
          hint: `millstream run FILE --batch --out DIR` computes it once; without to='nowhere' it is kept from the next --rebuild on
        """
        if not self.kept:
            raise UnknownView(
                f"view {self.name} of pipeline {self.pipeline} is kept nowhere: its changes go to its sinks, its rows are not stored",
                hint="`millstream run FILE --batch --out DIR` computes it once; without to='nowhere' it is kept from the next"
                " --rebuild on",
            )

    def _store(self) -> StoreReader:
        from millstream.store import open_reader

        self.refuse_unkept()
        return open_reader(self.to)

    def get(
        self, *key: Any, reveal: Vault | None = None, at_least: Offsets | None = None, timeout: float = 10.0
    ) -> dict[str, Any] | None:
        """Give the row of one key, its values in the order of ``key`` (directly over a stream: topic, partition, offset).

        With ``at_least``, a position such as that of a ``Decided`` or an append, wait until the pipeline has read so far, up to
        ``timeout`` seconds: who has written reads what was written. Raises ViewBehind, with the lag, if it has not by then.

        :param reveal: the vault that reveals what is sealed, as text; ``erased`` where the subject's key was deleted
        """
        with self._store() as store:
            if at_least is not None:
                from millstream.store.position import wait_for

                wait_for(store, self.pipeline, at_least, timeout)
            row = store.get(self.name, key)
        return row if row is None or reveal is None else reveal.reveal_row(row, self._origins(), f"view {self.name}")

    def to_arrow(self, *, reveal: Vault | None = None) -> pyarrow.Table:
        """Give all rows as an Arrow table.

        :param reveal: the vault that reveals what is sealed, as in :meth:`get`
        """
        with self._store() as store:
            table = store.table(self.name)
        return table if reveal is None else reveal.reveal_table(table, self._origins(), f"view {self.name}")

    def to_polars(self, *, reveal: Vault | None = None) -> polars.DataFrame:
        """Give all rows as a Polars frame.

        :param reveal: the vault that reveals what is sealed, as in :meth:`get`
        """
        import polars

        return polars.DataFrame(self.to_arrow(reveal=reveal))

    def to_pandas(self, *, reveal: Vault | None = None) -> pandas.DataFrame:
        """Give all rows as a pandas frame.

        :param reveal: the vault that reveals what is sealed, as in :meth:`get`
        """
        return self.to_arrow(reveal=reveal).to_pandas()

    def _origins(self) -> Origins:
        from millstream.relation.sealed import sealed_columns

        return sealed_columns(self.node)

    def to_spark(self, session: Any) -> Any:
        """Give all rows as a DataFrame of a Spark session.

        :param session: the Spark session
        """
        return session.createDataFrame(self.to_arrow())

    if not TYPE_CHECKING:  # else every name would be one

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is called otherwise here."""
            raise view_error(name)


class Views(dict[str, View]):
    """The views of a pipeline by their names; a wrong one is told with the right ones."""

    def __missing__(self, name: str) -> View:
        close = difflib.get_close_matches(str(name), self, 1)
        there = ", ".join(self) or "none"
        raise UnknownView(
            f"there is no view {name!r}; there are {there}", hint=f"did you mean {close[0]}?" if close else ""
        )


def describe_view(view: View) -> dict[str, Any]:
    """Say what a view is, in plain values that JSON can hold."""
    return {
        "to": view.where,
        "emit": view.emit,
        "key": list(view.key),
        "refused": view.refused,
        "columns": list(view.columns),
        "plan": str(Relation(view.node)),
        "place": str(view.place),
    }
