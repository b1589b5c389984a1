"""Which hosts are this machine: what goes to others is encrypted. Which are the same: what another page sends is refused."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether what is sent to a name or address never leaves this machine, as can be said without asking."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_same_place(origin: str, host: str) -> bool:
    """Whether a browser's page comes from where it sends a request: the headers Origin and Host."""
    scheme, separator, place = origin.partition("://")
    return bool(host) and bool(separator) and scheme in {"http", "https"} and place == host
