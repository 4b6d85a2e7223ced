"""``GET /views/{view}``: rows of a view as they are stored, some of them, in an order; and waiting until it has seen a record.

What a client writes is never SQL: columns are looked up, values read by their types and bound.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple, Unpack

import anyio
import polars as pl
from starlette.requests import Request
from starlette.responses import Response

from millstream.errors import ConfigError, ViewError
from millstream.pipeline import Pipeline
from millstream.serve.access import Access
from millstream.serve.refusal import Refusal
from millstream.sink.json_rows import documents
from millstream.store import open_reader
from millstream.store.contract import Comparison, Condition, Entry, Page, StoreReader
from millstream.view import View

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
_LIMIT, _MOST = 100, 1_000  # rows of an answer
_FARTHEST = 100_000  # rows that are passed over
_CONDITIONS = 20
_COMPARISONS: dict[str, Comparison] = {"": "=", "eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OURS = ("sort", "limit", "offset", "at_least", "wait")
_PLACE = re.compile(r"([A-Za-z0-9._-]{1,249})/(\d{1,9}:\d{1,18}(?:,\d{1,9}:\d{1,18})*)")
_LOOK = 0.05  # seconds between two looks at the ledger
_READERS = 4  # who read at once


class Views:
    """The views of pipelines, read from their stores."""

    def __init__(self, pipelines: Iterable[Pipeline], access: Access, seconds: float) -> None:
        self._access, self._seconds = access, seconds
        self._views: dict[str, View] = {}
        for pipeline in pipelines:
            for name, view in pipeline.views.items():
                if name in self._views:
                    raise ConfigError(
                        f"two pipelines have a view {name}: {self._views[name].pipeline} and {pipeline.name}",
                        hint="serve them by two servers, or give one view another name",
                    )
                self._views[name] = view
        self._readers: dict[str, StoreReader] = {}
        self._reading = anyio.CapacityLimiter(_READERS)

    def close(self) -> None:
        """Close the stores."""
        for reader in self._readers.values():
            reader.close()

    async def get(self, request: Request) -> Response:
        """Rows as JSON, with the batch that they have seen at least."""
        name = request.path_params["view"]
        self._access.check(request, "read", name)
        view = self._views.get(name)
        if view is None or not view.kept:
            raise Refusal(404, f"no view {name} is kept by the pipelines that this server was given")
        page, query = page_of(request.query_params), request.query_params
        reader = await self._run(self._reader, view.to)
        last = await self._run(reader.last, view.pipeline)
        if "at_least" in query:
            last = await self._wait(reader, view, last, _place(query["at_least"]), query.get("wait"))
        try:
            rows = await self._run(_rows, reader, name, page)
        except ViewError as error:
            raise Refusal(400, error.message) from None
        batch = "null" if last is None else str(last.batch)
        head = f'{{"view":"{name}","batch":{batch},"offset":{page.offset},"rows":['
        return Response(head + ",".join(rows) + "]}", media_type="application/json")

    async def _wait(
        self, reader: StoreReader, view: View, last: Entry | None, place: tuple[str, dict[int, int]], wait: str | None
    ) -> Entry | None:
        """The ledger's newest entry, once it has the records at a place."""
        seconds = min(self._seconds, _number("wait", wait, self._seconds))
        deadline = time.monotonic() + seconds
        topic, wanted = place
        while last is None or any(last.offsets.get(topic, {}).get(p, 0) <= offset for p, offset in wanted.items()):
            if last is not None and topic not in last.offsets:
                raise Refusal(400, f"view {view.name} is not made from topic {topic}")
            if time.monotonic() >= deadline:
                raise Refusal(503, f"view {view.name} has not seen that within {seconds:g} s", after=1)
            await asyncio.sleep(_LOOK)
            last = await self._run(reader.last, view.pipeline)
        return last

    def _reader(self, address: str) -> StoreReader:
        if address not in self._readers:
            self._readers[address] = open_reader(address, hides=True)
        return self._readers[address]

    async def _run(self, call: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        return await anyio.to_thread.run_sync(call, *arguments, limiter=self._reading)


def page_of(query: QueryParams) -> Page:
    """What a query asks for: ``?user=ann&n.gt=3&sort=-n,user&limit=10&offset=20``; Refusal 400 for what is none of it."""
    where = []
    for name, value in query.multi_items():
        column, dot, said = name.rpartition(".")
        if name in _OURS:
            continue
        if not dot or said not in _COMPARISONS:
            column, said = name, ""
        where.append(Condition(column, _COMPARISONS[said], value))
    if len(where) > _CONDITIONS:
        raise Refusal(400, f"more than {_CONDITIONS} conditions")
    limit, offset = (int(_number(name, query.get(name), at)) for name, at in (("limit", _LIMIT), ("offset", 0)))
    if not 1 <= limit <= _MOST or offset > _FARTHEST:
        raise Refusal(400, f"found limit {limit} and offset {offset}, expected 1 to {_MOST} and at most {_FARTHEST}")
    order = [(each.removeprefix("-"), each.startswith("-")) for each in query.get("sort", "").split(",") if each]
    if len({column for column, _ in order}) < len(order):
        raise Refusal(400, "sort: found a column twice")
    return Page(limit, offset, tuple(where), tuple(order))


def _place(text: str) -> tuple[str, dict[int, int]]:
    found = _PLACE.fullmatch(text)
    if found is None:
        raise Refusal(400, f"at_least: found {text!r:.80}, expected TOPIC/PARTITION:OFFSET,…", hint="clicks/0:17,1:4")
    pairs = (each.split(":") for each in found[2].split(","))
    return found[1], {int(partition): int(offset) for partition, offset in pairs}


def _number(name: str, text: str | None, otherwise: float) -> float:
    if text is None:
        return otherwise
    if not re.fullmatch(r"\d{1,9}(\.\d{1,3})?" if name == "wait" else r"\d{1,9}", text):
        raise Refusal(400, f"{name}: found {text!r:.80}, expected a number")
    return float(text)


def _rows(reader: StoreReader, view: str, page: Page) -> Sequence[str]:
    """Rows as documents of JSON. What is no number in JSON is null there."""
    frame = pl.DataFrame(reader.page(view, page))
    real = [name for name, kind in frame.schema.items() if kind.is_float()]
    found = frame.with_columns(pl.when(pl.col(name).is_finite()).then(pl.col(name)) for name in real)
    return documents(found).to_list()
