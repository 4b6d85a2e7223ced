"""The embedded log: all topics in one SQLite file."""
