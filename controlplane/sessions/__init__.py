"""The life of sessions: submission, scheduling, queue, listings, followers, and their end."""
