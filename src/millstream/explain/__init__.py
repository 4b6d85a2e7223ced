"""Explanations of a pipeline for people: its stages, its state, and how that grows."""
