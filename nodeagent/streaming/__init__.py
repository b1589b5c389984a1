"""Streams datasets to sessions without fetching them to the node: a read-only S3 endpoint, and a cache of chunks behind it."""
