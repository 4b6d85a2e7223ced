"""Erasure: what is known of a subject goes, and nobody else's answers change."""
