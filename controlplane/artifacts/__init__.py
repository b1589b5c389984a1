"""Artifacts: what sessions saved in versions."""
