"""Resources as people and programs read them: rows, records, plots. Pure: no clock, no terminal.

Both front ends draw through it. Whatever came from a user or a program is made harmless here
(`text.visible`) before it reaches a terminal.
"""
