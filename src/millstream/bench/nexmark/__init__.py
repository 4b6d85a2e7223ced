"""Nexmark, the common benchmark of streaming: its data, its questions, and whether answers are right."""
