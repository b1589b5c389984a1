"""Backups: all data of the platform, as one stream."""
