"""This machine: its devices, accounts, addresses and readings, and what a node requires of it."""
