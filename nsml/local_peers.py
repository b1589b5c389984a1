"""Which account of this machine opened a TCP connection to a server of ours."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    Endpoint = tuple[IPv4Address | IPv6Address, int]

FIRST_SESSION_UID: Final = 1_900_000_000
SESSION_UID_COUNT: Final = 65_536
SESSION_UIDS: Final = range(FIRST_SESSION_UID, FIRST_SESSION_UID + SESSION_UID_COUNT)
"""Accounts that an agent with root gives to sessions, unless its settings say otherwise."""

_LOCAL, _REMOTE, _UID = 1, 2, 7
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def uid_of_peer(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the uid of the socket at the client's end; None where it is not a socket of this network namespace."""
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        if (uid := find_uid(lines, client, server)) is not None:
            return uid
    return None


def find_uid(lines: Iterable[str], client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Find the client's socket in lines of /proc/net/tcp or tcp6."""
    wanted = _endpoint(*client), _endpoint(*server)
    port = f":{client[1]:04X}"
    for line in lines:
        fields = line.split()
        if not fields[_LOCAL].endswith(port):
            continue  # most of them, without a closer look
        if (_parsed(fields[_LOCAL]), _parsed(fields[_REMOTE])) == wanted:
            return int(fields[_UID])
    return None


def _endpoint(host: str, port: int) -> Endpoint:
    return _plain(ip_address(host.partition("%")[0])), port


def _parsed(text: str) -> Endpoint:
    """`0100007F:1F90`: words of the address in the machine's byte order, and the port."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return _plain(ip_address(socket.inet_ntop(family, packed))), int(port, 16)


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address that is written as one of IPv6 is the same place."""
    return getattr(address, "ipv4_mapped", None) or address
