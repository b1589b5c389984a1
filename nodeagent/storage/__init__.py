"""Data that the node keeps and fetches: datasets, code, checkpoints, media, and their disk space."""
