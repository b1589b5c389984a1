"""Python environments of sessions, and their package locks."""
