"""The tabs of one session."""
