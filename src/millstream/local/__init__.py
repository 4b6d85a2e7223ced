"""A pipeline's chain in this process, without Spark: for trials, for the shell, for small queries."""
