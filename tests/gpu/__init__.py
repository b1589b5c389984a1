"""What only a machine with an NVIDIA GPU shows; skipped with the reason elsewhere."""
