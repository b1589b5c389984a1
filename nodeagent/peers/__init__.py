"""Datasets from other nodes, and to them."""
