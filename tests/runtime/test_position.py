"""How far a pipeline is: written into the ledger and read back, also where partitions came later."""

from __future__ import annotations

import json

from millstream.runtime.delivery import Position


def test_a_position_comes_back_from_the_ledger_as_it_was() -> None:
    position = Position(
        {"t": {0: 5, 1: 0}}, {"t": {0: 9, 1: 3}}, {"t": {0: -1, 1: 7}}, {"t": {0: 100}}, {"4:0": (3, 200, 1)}
    )
    state = json.loads(json.dumps(position.to_state()))
    assert Position.restore({"t": {0: 5, 1: 0}}, position.offsets, state) == position


def test_a_partition_that_came_later_is_remembered_from_its_beginning() -> None:
    grown = Position({"t": {0: 5, 1: 0}}, {"t": {0: 9, 1: 3}})
    assert Position.restore({"t": {0: 5}}, grown.offsets, json.loads(json.dumps(grown.to_state()))).start == grown.start
