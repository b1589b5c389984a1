"""The public contract, generated from proto/nsml/v1."""
