"""Row patterns over flat arrays of sorted rows: patterns as automata, conditions as columns or row by row, the search, the measures."""
