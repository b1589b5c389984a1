"""Who leads: calls that are passed on to the leader, and the eviction of one whose host is gone."""
