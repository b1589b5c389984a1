"""Presentation of resources for people and programs: rows, records, plots. Pure: no clock, no terminal.

Used by both front ends. Text from users and programs is made safe here (`text.visible`)
before it reaches a terminal.
"""
