"""Media that sessions log beside metrics."""
