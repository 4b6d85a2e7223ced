"""The SQL shell: statements define, queries are answered or followed."""
