"""Scalar Spark SQL compiled to Polars: each expression exactly as Spark has it, or not at all."""
