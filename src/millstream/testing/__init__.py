"""What users test their own pipelines with: real servers on loopback that live as long as the test."""

from millstream.testing.kafka import KafkaBroker
from millstream.testing.postgres import PostgresServer

__all__ = ["KafkaBroker", "PostgresServer"]
