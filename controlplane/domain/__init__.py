"""Frozen values and the life-cycle tables: what the platform is about, without any I/O.

Standard library only. Time, ids and randomness are parameters.
"""
