"""Python environments of sessions: the packages that they ran with."""
