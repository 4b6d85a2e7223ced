"""What runs, one file for each operator: the spec of its kernel, how long that keeps its state, and the words that describe it."""
