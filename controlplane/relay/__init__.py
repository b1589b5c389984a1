"""The relay: a process of a control plane that passes on the bytes of tunnels, and decides nothing.

The control plane tells it which two ends to expect, each with a key for one use. It sees what they say encrypted, has
no other secret, and imports nothing of the control plane. All that comes to its port is read here, and never by the
process that decides.
"""
