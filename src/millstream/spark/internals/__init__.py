"""What leans on the inside of Spark, and could be another in another version of it."""
