"""What tests share: one Kafka broker and one Spark session per run, started when first asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from millstream.spark.session import spark_session, stop_session
from millstream.testing import KafkaBroker

pytest_plugins = ["millstream.testing.plugin"]  # also where the package that is installed is not this one


@pytest.fixture(scope="session", autouse=True)
def quiet_start() -> None:
    """Use a class-data archive that is there, but leave no process behind that makes one."""
    os.environ["MILLSTREAM_CLASS_ARCHIVE"] = "keep"


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session, with the Kafka connector."""
    yield spark_session("tests", kafka=True)
    stop_session()
