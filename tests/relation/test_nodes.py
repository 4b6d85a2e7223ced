"""Every node answers everything that is asked of nodes."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest

from millstream.relation.nodes import Node
from millstream.relation.operators.contract import NodeContract


@pytest.mark.parametrize("kind", get_args(Node), ids=lambda kind: kind.__name__)
def test_a_node_gives_each_answer_itself(kind: type[Any]) -> None:
    assert kind.__bases__ == (NodeContract,)
    assert not inspect.isabstract(kind)


def test_an_operator_that_leaves_an_answer_out_cannot_be_made() -> None:
    class Partial(NodeContract):
        def is_stream(self) -> bool:
            return True

    with pytest.raises(TypeError, match="abstract"):
        Partial()  # type: ignore[abstract]
