"""Media: what sessions show beside their numbers."""
