"""Competitions: their settings as a file, taking part, standings."""
