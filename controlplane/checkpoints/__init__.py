"""Checkpoints of sessions: saved, then durable or lost; and retention."""
