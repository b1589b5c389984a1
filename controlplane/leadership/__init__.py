"""Forwarding of calls to the leader, and eviction of a leader with a dead host."""
