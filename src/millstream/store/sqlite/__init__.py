"""Views in one SQLite file."""
