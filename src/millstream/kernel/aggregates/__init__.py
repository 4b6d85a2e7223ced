"""What aggregates are made of: accumulators, exact sums, sketches, frames, windows in time."""
