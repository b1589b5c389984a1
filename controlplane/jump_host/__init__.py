"""The jump host, a program of its own: relays ssh of machines without nsml to sessions.

It identifies users by their public keys, asks the control plane for each connection, and relays encrypted bytes
between the client and the session.
"""
