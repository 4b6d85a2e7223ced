"""Capture from PostgreSQL, by logical replication."""
