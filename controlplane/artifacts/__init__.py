"""Artifacts: versioned files of sessions."""
