"""Metrics out of what programs print: patterns of users, and recognisers of well-known lines."""
