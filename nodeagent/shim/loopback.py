"""A TCP listener on the loopback address of a program's network, held by its shim and served by the agent.

Standard library only: it runs in the shim. The shim creates it before the program begins, so that early connections
wait and are not refused, and keeps it as long as the program runs: it outlives agents, which receive it through a
visitor (`visitor.py`). The program does not inherit it. `spec.json` requests it:

```
{"listener": {"variables": [names]}}      the program's variables for its URL
```
"""

from __future__ import annotations

import os
import socket

from nodeagent.shim import namespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LISTENER = "listener"
_ADDRESS = "127.0.0.1"
_BACKLOG = 128
"""Connections that wait while no agent runs."""


def listen(spec: dict[str, Any], network: int = -1) -> dict[str, str]:
    """Create the listener of `spec`, in this process's network or in `network`; return the variables with its URL.

    They are added to the environment of `spec`, and the listener to `spec`. Empty if none is requested.
    Raises OSError.
    """
    wanted = spec.get(LISTENER)
    if not wanted:
        return {}
    own = -1
    if network >= 0:
        own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        namespaces.enter_network(network)
    try:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.bind((_ADDRESS, 0))
        made.listen(_BACKLOG)
    finally:
        if own >= 0:
            namespaces.enter_network(own)
            os.close(own)
    url = f"http://{_ADDRESS}:{made.getsockname()[1]}"
    wanted["descriptor"] = made.detach()
    variables = dict.fromkeys(wanted["variables"], url)
    spec["env"] = {**spec.get("env", {}), **variables}
    return variables


def hand_over(spec: dict[str, Any], end: socket.socket) -> None:
    """Send the listener to the agent at the other `end`. Raises OSError: there is none."""
    descriptor = (spec.get(LISTENER) or {}).get("descriptor")
    if descriptor is None:
        raise OSError("it has no listener")
    socket.send_fds(end, [b"{}"], [descriptor])
