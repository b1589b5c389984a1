"""This machine in its network: its address for others, and its free ports."""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import closing, suppress

import psutil

from nsml.client.contexts import is_local, split_server

_ELSEWHERE = (("192.0.2.1", 9), ("2001:db8::1", 9))
"""Documentation addresses: nothing is sent there; the system only chooses a route."""


def reachable_host(server: str, host_name: str) -> str:
    """Return the address of this machine for other nodes, as far as it can tell.

    The one used to reach the control plane: host names may not resolve elsewhere. If that
    is on this machine, the one of the route outside; `host_name` without any.
    """
    if not is_local(server):
        address = _own_address(*split_server(server))
        if address:
            return address
    return next(filter(None, (_own_address(*place) for place in _ELSEWHERE)), host_name)


def interface_of(host: str) -> str:
    """Return the interface with the address or name `host`, such as "eth0".

    Empty if none has it (others connect through address translation), and for the loopback,
    which others cannot reach.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    wanted = {str(address[0]) for *_, address in found}
    if any(ipaddress.ip_address(one).is_loopback for one in wanted):
        return ""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address in wanted for one in addresses):
            return name
    return ""


def is_port_free(port: int) -> bool:
    """Whether a TCP port of this machine is free, at all of its addresses."""
    for family, everywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104
        with suppress(OSError):  # a machine without IPv6 has no such sockets
            probe = socket.socket(family, socket.SOCK_STREAM)
            with closing(probe):
                # like programs that meet there: lingering closed connections do not matter
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                if not _is_bindable(probe, everywhere, port):
                    return False
    return True


def _is_bindable(probe: socket.socket, host: str, port: int) -> bool:
    try:
        probe.bind((host, port))
        probe.listen(1)
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _own_address(host: str, port: int) -> str:
    """Return the source address of a datagram to there; empty without a route, or with only a local one."""
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with suppress(OSError), closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
                probe.connect(address)
                own = str(probe.getsockname()[0])
                if not is_local(f"[{own}]:1" if ":" in own else f"{own}:1"):
                    return own
    return ""
