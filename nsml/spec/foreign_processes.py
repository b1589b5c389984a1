"""Prefix of an agent's reason for withholding a device used by a process of no session."""

USED_BY = "used by process "
