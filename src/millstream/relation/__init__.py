"""Relations: frozen nodes with their columns and expressions, checked when they are defined. Nothing runs here."""
