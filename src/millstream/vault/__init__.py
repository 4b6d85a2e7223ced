"""Crypto-shredding: personal values are tokens from the producer to the reader, and whoever deletes a key has deleted every copy."""
