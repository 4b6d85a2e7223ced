"""What a user says: relations as frozen nodes, their columns and expressions, checked where they are said. Nothing runs here."""
