"""Processes between the agent and one running program, which outlive the agent.

`shim.py` is a process of its own for each replica, forked by `zygote.py`. It runs the program as a process
(`forked.py`, in a root made by `namespaces.py`) or as a container (`contained.py`; `keeper.py` waits for
the engine beside it), and enforces its limits: by the kernel's control groups (`cgroups.py`) or by polling (`watch.py`, `disk_usage.py`; `activity.py` detects idleness).
Standard library only and little of it, because all of this is in memory once for each replica; of the
agent's other packages it imports only `engine/wire.py`.
"""
