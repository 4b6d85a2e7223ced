"""Capture from SQLite, by triggers that write every change into a table beside the others."""
