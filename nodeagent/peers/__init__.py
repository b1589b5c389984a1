"""Exchange of datasets with peers, which are other nodes."""
