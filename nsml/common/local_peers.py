"""The local accounts that opened a TCP connection to one of our servers, or that listen at a port."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    Endpoint = tuple[IPv4Address | IPv6Address, int]

FIRST_SESSION_UID: Final = 1_900_000_000
SESSION_UID_COUNT: Final = 65_536
SESSION_UIDS: Final = range(FIRST_SESSION_UID, FIRST_SESSION_UID + SESSION_UID_COUNT)
"""Default range of the accounts that an agent with root assigns to sessions."""

UNKNOWN_UID: Final = -1

_LOCAL, _REMOTE, _STATE, _UID = 1, 2, 3, 7
_LISTENS: Final = 0x0A
_MOST_LISTENING: Final = 100_000
_READ_BYTES: Final = 32 << 10
_ANSWER_S: Final = 1.0
_SOCK_DIAG, _BY_FAMILY = 4, 20
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_HEAD: Final = "=IHHII"
# struct inet_diag_msg follows the header: four bytes, two ports, two addresses of 16 bytes, and so on.
_SOURCE: Final = 16 + 8
_OWNER: Final = 16 + 64
_SHORTEST: Final = 16 + 72
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def uid_of_peer(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the uid of the client's socket; None if it is not in this network namespace."""
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        if (uid := find_uid(lines, client, server)) is not None:
            return uid
    return None


def uids_listening(host: str, port: int) -> set[int]:
    """Return the uids of the sockets that may answer at a loopback address; empty: unknown, or nobody listens.

    It contains `UNKNOWN_UID` if there are too many sockets to search.
    """
    try:
        wanted = _answering(host.lower())
    except OSError:
        return set()  # no address
    found = set[int]()
    for family, table in zip((socket.AF_INET, socket.AF_INET6), _TABLES, strict=True):
        addresses = {packed for each, packed in wanted if each == family}
        try:
            found |= _asked_listening(family, addresses, port)
        except OSError:
            with suppress(OSError):
                found |= _read_listening(table, addresses, port)
    return found


def _answering(host: str) -> list[tuple[int, bytes]]:
    """Return the socket addresses that may accept connections to a host."""
    four = ["127.0.0.1"] if host == "localhost" else [host] if ":" not in host else []
    six = ["::1"] if host == "localhost" else [host] if ":" in host else []
    six += [*(f"::ffff:{one}" for one in four), "::"]  # [::] takes those of IPv4, too
    if four:
        four.append("0.0.0.0")  # noqa: S104 - nothing is bound to it
    families = ((socket.AF_INET, four), (socket.AF_INET6, six))
    return [(family, socket.inet_pton(family, one)) for family, some in families for one in some]


def _asked_listening(family: int, addresses: Collection[bytes], port: int) -> set[int]:
    """Query the kernel's listeners at one port: its tables in /proc take milliseconds even if few sockets are open.

    See sock_diag(7).
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asking:
        asking.settimeout(_ANSWER_S)
        query = struct.pack("=BBxxI", family, socket.IPPROTO_TCP, 1 << _LISTENS)
        query += struct.pack("!H46x", port)
        head = struct.pack(
            _HEAD, struct.calcsize(_HEAD) + len(query), _BY_FAMILY, _REQUEST | _DUMP, 1, 0
        )
        asking.sendto(head + query, (0, 0))
        found, count = set[int](), 0
        size = 4 if family == socket.AF_INET else 16
        while True:
            answer = asking.recv(_READ_BYTES)
            while answer:
                length, kind, *_ = struct.unpack_from(_HEAD, answer)
                if kind == _DONE:
                    return found
                if kind == _ERROR or length < _SHORTEST:
                    raise OSError("the kernel does not list sockets")
                if answer[_SOURCE : _SOURCE + size] in addresses:
                    found.add(struct.unpack_from("=I", answer, _OWNER)[0])
                answer, count = answer[(length + 3) & ~3 :], count + 1
                if count > _MOST_LISTENING:
                    return {*found, UNKNOWN_UID}


def _read_listening(table: Path, addresses: Collection[bytes], port: int) -> set[int]:
    wanted = {f"{_written(packed)}:{port:04X}" for packed in addresses}
    found = set[int]()
    with table.open(encoding="ascii") as lines:
        next(lines, "")
        for number, line in enumerate(lines):
            fields = line.split()
            if int(fields[_STATE], 16) != _LISTENS:
                break  # listening sockets come first
            if fields[_LOCAL] in wanted:
                found.add(int(fields[_UID]))
            if number == _MOST_LISTENING:
                return {*found, UNKNOWN_UID}
    return found


def _written(packed: bytes) -> str:
    """Return an address in the tables' format: words in the machine's byte order."""
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words)


def find_uid(lines: Iterable[str], client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Find the client's socket in lines of /proc/net/tcp or tcp6."""
    wanted = _endpoint(*client), _endpoint(*server)
    port = f":{client[1]:04X}"
    for line in lines:
        fields = line.split()
        if not fields[_LOCAL].endswith(port):
            continue  # fast path for most lines
        if (_parsed(fields[_LOCAL]), _parsed(fields[_REMOTE])) == wanted:
            return int(fields[_UID])
    return None


def _endpoint(host: str, port: int) -> Endpoint:
    return _plain(ip_address(host.partition("%")[0])), port


def _parsed(text: str) -> Endpoint:
    """Parse `0100007F:1F90`: words of the address in the machine's byte order, and the port."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return _plain(ip_address(socket.inet_ntop(family, packed))), int(port, 16)


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return an IPv4-mapped IPv6 address as IPv4."""
    return getattr(address, "ipv4_mapped", None) or address
