"""Stored queries: conditions of strangers over the columns of a stream, read with limits, and found by what they ask for."""
