"""This machine: its devices, accounts, addresses and readings, and what it lacks to be a node."""
