"""Readings of the machine: devices (one protocol) and the host."""
