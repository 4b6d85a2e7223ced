"""The types of what flows through a chain: kernels run over no rows at all, and what they give has the columns of the real thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from millstream.errors import PlanError
from millstream.kernel.exchange.chunk import shaped
from millstream.kernel.kernel import Side, State
from millstream.kernel.operators.kernel_of import kernel_of
from millstream.kernel.state.store import NEVER, Memory, Meta
from millstream.plan.build import DRIVER, ORIGIN, Chain, Port


def input_frames(chain: Chain, feeds: Mapping[int, pl.Schema]) -> dict[tuple[int, int], pl.DataFrame]:
    """What reaches each side of each kernel, and each view, as frames without rows: kernels run over nothing at all.

    ``feeds`` are the types of the feeds' expressions.
    """
    inputs: dict[tuple[int, int], pl.DataFrame] = {}

    def reach(ports: Iterable[Port], rows: pl.DataFrame) -> None:
        for port in ports:
            made = shaped(rows, port)
            _check_types(inputs.get((port.target, port.side), made).schema, made.schema)
            inputs[port.target, port.side] = made

    origin = {ORIGIN[0]: pl.String(), ORIGIN[1]: pl.Int32(), ORIGIN[2]: pl.Int64()}
    for feed in chain.feeds:
        types = {each.name: feeds[feed.number][each.name] for each in feed.expressions}
        changelog = {ORIGIN[2]: pl.Int64(), "_deleted": pl.Boolean(), "_a": pl.Int64()}
        changelog = changelog if feed.source.kind == "table" else {}
        reach((port for port in feed.ports if port.stage != DRIVER), pl.DataFrame(schema={**types, **changelog}))
        reach((port for port in feed.ports if port.stage == DRIVER), pl.DataFrame(schema={**types, **origin}))
    for operator in sorted(chain.operators, key=lambda each: each.stage):
        frames = [inputs[operator.number, side] for side in range(operator.sides)]
        sides = tuple(Side(NEVER, NEVER, frame.schema) for frame in frames)
        state = State(Memory(), Meta(), NEVER, NEVER, frames[0].schema, sides=sides if operator.sides > 1 else ())
        changes = kernel_of(operator.spec).step(state, *frames)
        assert changes is not None  # noqa: S101
        reach(operator.ports, changes)
    return inputs


def raw_schemas(chain: Chain, feeds: Mapping[int, pl.Schema]) -> dict[str, pl.Schema]:
    """The raw columns and types of each view, from the types of the feeds' expressions: kernels run over no rows at all."""
    inputs = input_frames(chain, feeds)
    schemas = {}
    for output in chain.outputs:
        columns = {name: inputs[output.number, 0].schema[name] for name in output.columns}
        origin = {name: inputs[output.number, 0].schema[name] for name in ORIGIN} if output.append else {}
        schemas[output.name] = pl.Schema({**columns, **origin})
    return schemas


def _check_types(one: pl.Schema, other: pl.Schema) -> None:
    """Refuse a union of different types: what was kept of one could not be compared with the other."""
    for name in one:
        if name in other and one[name] != other[name]:
            raise PlanError(
                f"union: column {name} is of type {one[name]} in one relation and {other[name]} in another",
                hint=f"cast one of them: select(…, 'cast({name} AS …) AS {name}')",
            )
