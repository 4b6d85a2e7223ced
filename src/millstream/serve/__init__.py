"""HTTP in front of a log and its views: events come in, rows and changes go out; an extra, ``millstream[serve]``."""
