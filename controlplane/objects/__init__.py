"""Bytes by digest: datasets, bundles, checkpoints, manifests."""
