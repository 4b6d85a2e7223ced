"""Change capture: tables of a database become topics of changes, exactly once and in commit order."""
