"""Datasets from peers, which are other nodes, and to them."""
