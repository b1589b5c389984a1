"""Users' secrets: set, listed, removed, and opened for the programs of their owner alone."""
