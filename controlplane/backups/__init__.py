"""Backups: everything that the platform keeps, as one stream."""
