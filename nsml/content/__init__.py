"""Content shared by client and server: ignore rules, packing, chunks, manifests, digests, extraction.

The format is described in docs/content.md. Third-party libraries are imported inside the functions
that use them, so that commands without content never load them.
"""
