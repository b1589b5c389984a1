"""Frozen values and the life-cycle tables: the platform's data model, without any I/O.

Standard library only. Time, ids and randomness are parameters.
"""
