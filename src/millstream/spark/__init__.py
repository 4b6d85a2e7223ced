"""Spark: finding a Java, starting a session, reading the log and running the plan."""
