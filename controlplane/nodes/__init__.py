"""Nodes and their agents: registration, orders, silence, and administrators' actions."""
