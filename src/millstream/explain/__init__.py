"""What is told to people of a pipeline: its stages, its state, how that grows."""
