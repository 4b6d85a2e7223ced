"""What runs, a file an operator: what its kernel is told, how long that keeps what it keeps, and what is said of it to people."""
