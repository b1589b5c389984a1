"""Checks of hosts: whether traffic leaves this machine (it is encrypted then), and whether a request is cross-origin (refused)."""

from __future__ import annotations

import functools
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_GLOBAL: Final = IPv6Network("2000::/3")
"""Range of allocated global unicast addresses; all others are special or unassigned."""
_NOT_PUBLIC: Final = (IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))
"""Unknown to older versions of Python: a relay of 6to4, and documentation."""

CLIENT_BITS: Final = 64
"""Prefix of an IPv6 address that identifies a client: it owns all addresses below."""


def is_loopback(host: str) -> bool:
    """Return whether traffic to a name or address stays on this machine, without resolving it."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_public(address: str) -> bool:
    """Return whether a numeric address is public: not of this machine or a private network.

    Nor one with an embedded IPv4 address, which may be any.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and (found not in _GLOBAL or found.sixtofour or found.teredo):
        return False
    return found.is_global and not found.is_multicast and not is_within(address, _NOT_PUBLIC)


def is_within(address: str, among: Iterable[IPv4Network | IPv6Network]) -> bool:
    """Return whether an address is in one of the networks; also an IPv4-mapped IPv6 address."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    found = getattr(found, "ipv4_mapped", None) or found
    return any(found in network for network in among)


@functools.lru_cache(maxsize=4096)
def client_of(address: str) -> str:
    """Return the client that limits count an address for: an IPv4 address, also if mapped, or the /64 of an IPv6 one."""
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
    """Return whether a request is same-origin, by the headers Origin and Host."""
    scheme, separator, place = origin.partition("://")
    return bool(host) and bool(separator) and scheme in {"http", "https"} and place == host
