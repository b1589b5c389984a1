"""Which hosts are this machine: what goes to others is encrypted. Which are the same: what another page sends is refused."""

from __future__ import annotations

import functools
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

CLIENT_BITS: Final = 64
"""Of an IPv6 address: whoever has one has all that begin like it."""


def is_loopback(host: str) -> bool:
    """Whether what is sent to a name or address never leaves this machine, as can be said without asking."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@functools.lru_cache(maxsize=4096)
def client_of(address: str) -> str:
    """Return whom limits count an address for: an IPv4 address, however it is written, or the /64 of an IPv6 one."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ip_network((found, CLIENT_BITS), strict=False))


def is_same_place(origin: str, host: str) -> bool:
    """Whether a browser's page comes from where it sends a request: the headers Origin and Host."""
    scheme, separator, place = origin.partition("://")
    return bool(host) and bool(separator) and scheme in {"http", "https"} and place == host
