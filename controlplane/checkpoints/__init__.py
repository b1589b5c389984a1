"""Checkpoints: what sessions saved, and when it became durable or lost."""
