"""Which hosts are this machine: what goes to others is encrypted."""

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
