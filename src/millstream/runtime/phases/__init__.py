"""The phases of a run, in order: claim, recover, prepare, start, watch. Each takes what those before it gave, and gives a frozen record."""
