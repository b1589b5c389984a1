"""Tunnels: a client's byte stream to a program's socket, by way of the agent that runs it."""
