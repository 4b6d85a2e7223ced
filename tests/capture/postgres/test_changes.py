"""What the stream says of transactions, and what becomes of it."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.capture.postgres.world import World


def test_a_transaction_comes_as_one_in_the_order_of_its_statements(world: World) -> None:
    world.run("CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (id int PRIMARY KEY, v int)")
    world.run("ALTER TABLE b REPLICA IDENTITY FULL")
    before = datetime.now(UTC).replace(microsecond=0)
    with world.opened("a", "b") as (source, position):
        world.run("BEGIN", "INSERT INTO b VALUES (1, 1)", "INSERT INTO a VALUES (1, 1), (2, 2)", "UPDATE b SET v = 2", "UPDATE a SET v = 3 WHERE id = 2", "UPDATE a SET id = 4 WHERE id = 2", "DELETE FROM a WHERE id = 1", "COMMIT")  # fmt: skip
        ((transaction, changes),) = world.collect(source, position)
    assert [(each.table.name, each.op, each.before, each.after) for each in changes] == [
        ("b", "c", None, {"id": 1, "v": 1}),
        ("a", "c", None, {"id": 1, "v": 1}),
        ("a", "c", None, {"id": 2, "v": 2}),
        ("b", "u", {"id": 1, "v": 1}, {"id": 1, "v": 2}),
        ("a", "u", None, {"id": 2, "v": 3}),
        ("a", "u", {"id": 2}, {"id": 4, "v": 3}),
        ("a", "d", {"id": 1}, None),
    ]
    assert transaction.time is not None
    assert before <= transaction.time <= datetime.now(UTC)
    assert int(transaction.id) > 0
