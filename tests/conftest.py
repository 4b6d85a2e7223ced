"""What tests share: one Kafka broker, one server each of PostgreSQL and MariaDB, and one Spark session per process, started when first asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from millstream.errors import MachineError
from millstream.spark.session import spark_session, stop_session
from millstream.testing import KafkaBroker, MariaDbServer, PostgresServer
from tests.marks import needs_of, no_process

pytest_plugins = ["millstream.testing.plugin"]  # also where the package that is installed is not this one
settings.register_profile("no deadline", deadline=None)  # a machine may be busy
settings.load_profile("no deadline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in sorted(needs_of(item)):
            item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with no_process(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with no_process(item):
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def quiet_start() -> None:
    """Use a class-data archive that is there, but leave no process behind that makes one."""
    os.environ["MILLSTREAM_CLASS_ARCHIVE"] = "keep"


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def secured_kafka() -> Iterator[KafkaBroker]:
    """A broker that lets in who has a password or a certificate, over TLS."""
    with KafkaBroker(secured=True) as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The one server; without one the test is skipped, unless CI=true."""
    with _postgres() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that the test may kill."""
    with _postgres() as server:
        yield server


def _postgres() -> PostgresServer:
    try:
        return PostgresServer()
    except MachineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no PostgreSQL here: {error.message}")


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    """The one server; without one the test is skipped, unless CI=true."""
    with _mariadb() as server:
        yield server


@pytest.fixture
def own_mariadb() -> Iterator[MariaDbServer]:
    """A server that the test may kill."""
    with _mariadb() as server:
        yield server


def _mariadb() -> MariaDbServer:
    try:
        return MariaDbServer()
    except MachineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no MariaDB here: {error.message}")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of this process, with the Kafka connector; no test may stop it."""
    yield spark_session("tests", kafka=True)
    stop_session()
