"""Blobs in and out, who may read which, and the collection of those that nothing refers to."""
