"""Datasets that a session reads without their being fetched to the node: a read-only S3 endpoint, and a cache of chunks behind it."""
