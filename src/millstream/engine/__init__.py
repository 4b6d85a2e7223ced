"""Capture by Debezium's own engine, in a process of its own, of databases that we have no reader for."""
