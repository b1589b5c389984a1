"""A TCP listener on the loopback address of a program's network, which its shim holds and the agent serves.

Standard library only: it runs in the shim. The shim makes it before the program begins, so that whoever connects
early waits and is not refused, and keeps it as long as the program runs: it outlives agents, which get it by a visitor
(`visitor.py`). Of the program nothing has it. `spec.json` asks for it:

```
{"listener": {"variables": [names]}}     variables of the program that are to hold its URL
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
"""Connections that wait while there is no agent."""


def listen(spec: dict[str, Any], network: int = -1) -> dict[str, str]:
    """Make the listener that `spec` asks for, in this process's network or in `network`; the variables that tell of it.

    They are in the environment of `spec` from then on, and the listener is in `spec`. Nothing where none is asked for.
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
