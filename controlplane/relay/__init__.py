"""The relay: a process of a control plane that relays the bytes of tunnels, and decides nothing.

The control plane announces the two ends of each tunnel, each with a key for one use. The relay sees only encrypted bytes,
has no other secret, and imports nothing of the control plane. Bytes from strangers at its port are parsed here, never by
the process that decides.
"""
