"""Creates a socket in a network namespace of a user namespace below the agent's, and sends it to the agent.

Standard library only. A process of its own: multithreaded ones cannot enter a user namespace.
"""

from __future__ import annotations

import fcntl
import socket
import sys

from nodeagent.shim import namespaces

_NS_GET_USERNS = 0xB701


def main() -> None:
    """Arguments after the folder: descriptors of the namespace and of a socket for the answer; a family."""
    network, answer, family = map(int, sys.argv[2:5])
    namespaces.enter_users(fcntl.ioctl(network, _NS_GET_USERNS))
    namespaces.enter_network(network)
    made = socket.socket(socket.AddressFamily(family), socket.SOCK_STREAM)
    socket.send_fds(socket.socket(fileno=answer), [b"."], [made.fileno()])
