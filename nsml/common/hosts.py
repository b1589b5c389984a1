"""Which hosts are this machine: what goes to others is encrypted. Which are the same: what another page sends is refused."""

from __future__ import annotations

import functools
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_GLOBAL: Final = IPv6Network("2000::/3")
"""What IPv6 addresses are given out of; everything else has a meaning of its own, or will have."""
_NOT_PUBLIC: Final = (IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))
"""Which older versions of Python do not know: a relay of 6to4, and documentation."""

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


def is_public(address: str) -> bool:
    """Whether an address, as numbers, is anybody's to call: not of this machine or a network of its own.

    Nor one in which an IPv4 address is hidden, which may be any.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and (found not in _GLOBAL or found.sixtofour or found.teredo):
        return False
    return found.is_global and not found.is_multicast and not is_within(address, _NOT_PUBLIC)


def is_within(address: str, among: Iterable[IPv4Network | IPv6Network]) -> bool:
    """Whether an address is of one of the networks; an IPv4 address may be written as one of IPv6."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    found = getattr(found, "ipv4_mapped", None) or found
    return any(found in network for network in among)


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
