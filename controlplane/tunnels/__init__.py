"""Tunnels: a client's byte stream to a program's socket, through the node's agent."""
