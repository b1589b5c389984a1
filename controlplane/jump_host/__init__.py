"""The jump host, a program of its own: ssh of machines without nsml passes through it to sessions.

It knows users by their public keys, asks the control plane for each connection, and passes on what is encrypted from
the client to the session.
"""
