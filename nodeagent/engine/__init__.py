"""The container engine (Docker), through one client; blocking calls, for threads.

`client.py` connects and names errors, `containers.py` finds and removes containers. The
shim starts and watches its own container by a few calls over the engine's socket: `shim/contained.py`.
"""
