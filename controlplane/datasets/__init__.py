"""Datasets: names for immutable, numbered versions of content."""
