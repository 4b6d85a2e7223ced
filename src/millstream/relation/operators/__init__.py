"""What a user says, a file an operator: its node, its checks, and all that can be said of its rows."""
