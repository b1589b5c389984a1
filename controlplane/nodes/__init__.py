"""Nodes and the agents that run on them: registration, orders, silence, and what administrators decide."""
