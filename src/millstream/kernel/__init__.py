"""Kernels: pure functions (state, changes) → (state, changes) on data frames. Nothing here knows of Spark."""
