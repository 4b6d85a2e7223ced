"""What the engine is told: the user's properties, what is ours to say, and no secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.capture.opening import absolute, is_address, name_of, open_source
from millstream.engine.settings import read_properties
from millstream.errors import ConfigError

POSTGRES = """
# a comment
connector.class = io.debezium.connector.postgresql.PostgresConnector
database.hostname=db
database.user: me
database.password=${env:SHOP_PASSWORD}
database.dbname=shop
"""


def file(folder: Path, text: str) -> Path:
    path = folder / "shop.properties"
    path.write_text(text)
    return path


def test_the_users_properties_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_properties(file(tmp_path, POSTGRES), ["public.users", "public.a$b"], "my-shop")
    assert found.url == "jdbc:postgresql://db:5432/shop"
    assert found.values["table.include.list"] == r"public\.users,public\.a\$b"
    assert (found.values["slot.name"], found.values["plugin.name"]) == ("millstream_my_shop", "pgoutput")
    assert found.values["database.password"] == "${env:SHOP_PASSWORD}"
    monkeypatch.setenv("SHOP_PASSWORD", "s3cret")
    resolved = found.resolved(tmp_path / "offsets")
    assert (resolved["database.password"], resolved["offset.storage.file.filename"]) == (
        "s3cret",
        str(tmp_path / "offsets"),
    )
    mysql = POSTGRES.replace("postgresql.PostgresConnector", "mysql.MySqlConnector") + "database.server.id=7\n"
    found = read_properties(file(tmp_path, mysql), ["shop.users"], "shop")
    assert found.values["schema.history.internal.file.filename"] == str(tmp_path / "shop.shop.history")
    said = POSTGRES + "slot.name=mine\npoll.interval.ms=7\n"
    assert read_properties(file(tmp_path, said), ["public.users"], "shop").values["slot.name"] == "mine"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (POSTGRES + "snapshot.mode=never", "snapshot.mode is ours to say; found 'never'"),
        (POSTGRES + "transforms=unwrap", "transforms is ours to say"),
        (POSTGRES.replace("${env:SHOP_PASSWORD}", "s3cret"), "database.password: a secret must not stand"),
        (POSTGRES.replace("postgresql.PostgresConnector", "mongodb.MongoDbConnector"), "expected one of io.debezium.connector.postgresql"),
        (POSTGRES.replace("database.dbname=shop", ""), "no database.dbname"),
        (POSTGRES + "what is this", "line 8: expected NAME=VALUE"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as found:
        read_properties(file(tmp_path, text), ["public.users"], "shop")
    assert why in found.value.message
    assert "s3cret" not in found.value.message


def test_a_file_that_is_not_there_and_a_table_without_a_schema_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        open_source(f"debezium:{tmp_path / 'nothing.properties'}", ["public.users"], "shop")
    with pytest.raises(ConfigError, match=r"expected SCHEMA\.TABLE"):
        open_source(f"debezium:{file(tmp_path, POSTGRES)}", ["users"], "shop")
    with pytest.raises(ConfigError, match="expected nothing"):
        open_source(f"debezium:{file(tmp_path, POSTGRES)}", ["public.users"], "shop", allow=["cascades"])


def test_the_address_is_that_of_the_file() -> None:
    assert is_address("debezium:shop.properties")
    assert name_of("debezium:conf/shop.properties") == "shop"
    assert absolute("debezium:shop.properties") == f"debezium:{Path('shop.properties').absolute()}"
