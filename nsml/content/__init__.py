"""Bytes as both ends see them: ignore rules, packing, chunks, manifests, digests, extraction.

The format is described in docs/content.md. Third-party libraries are imported inside the functions
that use them, so that a command which moves no content never loads them.
"""
