"""Access check for ports opened on the loopback: only this user, and no foreign web page.

The loopback is shared by all users of the machine. The kernel lists both ends of each connection with their
users, so the peer of an accepted connection can be identified. A page of another site is loaded by
the user's own browser; if its name resolves to the loopback (DNS rebinding), it is recognised by that name,
which browsers send as Host.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsml.common.hosts import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_HEAD_BYTES: Final = 64 << 10
"""Longest request head that is parsed; a longer one is refused."""

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^\r\n]* HTTP/1\.[0-9]\r?\n")
_ITS_BEGINNING = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]*( [^\r\n]*\r?)?")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_REFUSAL = (
    "HTTP/1.1 421 Misdirected Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    "Content-Length: {}\r\nConnection: close\r\n\r\n{}"
)


class CannotTell(Exception):
    """This system cannot identify the peer."""


def user_at(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """Return the uid of a local connection's peer; None: it is closed.

    Args:
        peer: address and port of that end.
        here: address and port of our own.

    Raises:
        CannotTell: this system has no list of connections.
    """
    if not sys.platform.startswith("linux"):
        raise CannotTell
    try:
        tables = [
            Path(table).read_text(encoding="ascii") for table in _TABLES if Path(table).exists()
        ]
    except OSError:
        return None
    return owner_in(tables, peer, here)


def owner_in(tables: Iterable[str], peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """`user_at` on the contents of /proc/net/tcp and tcp6."""
    ends = {(near, far) for near in _written(*peer) for far in _written(*here)}
    for table in tables:
        for line in table.splitlines()[1:]:
            fields = line.split()
            # a socket closed by its program has no inode and no valid uid
            if (fields[1], fields[2]) in ends and fields[9] != "0":
                return int(fields[7])
    return None


def _written(host: str, port: int) -> list[str]:
    """Return an IPv4 address and port in the kernel's format, also for dual-stack sockets."""
    packed = ipaddress.IPv4Address(host).packed
    words = []
    for address in (packed, ipaddress.IPv6Address(f"::ffff:{host}").packed):
        parts = [address[at : at + 4] for at in range(0, len(address), 4)]
        value = "".join(f"{int.from_bytes(part, sys.byteorder):08X}" for part in parts)
        words.append(f"{value}:{port:04X}")
    return words


def may_pass(begun: bytes, names: Iterable[str] = ()) -> bool | None:
    """Return whether a client's first bytes may be passed on: no HTTP, or a request to this machine.

    A browser keeps a connection to one name, so the first request decides.

    Args:
        begun: the bytes so far.
        names: of this machine, beside those of the loopback.

    Returns:
        None if more bytes are needed.
    """
    if not _REQUEST_LINE.match(begun):
        whole = _ITS_BEGINNING.fullmatch(begun)
        if not whole:
            return True
        # Incomplete requests must not pass: a page can request a target of any length.
        return None if len(begun) < MOST_HEAD_BYTES else False
    end = _HEAD_END.search(begun)
    if end is None:
        return None if len(begun) < MOST_HEAD_BYTES else False
    hosts = re.findall(
        rb"^host[ \t]*:[ \t]*(.*?)[ \t]*$",
        begun[: end.start()].replace(b"\r", b""),
        re.IGNORECASE | re.MULTILINE,
    )
    # programs without browsers may omit Host, which HTTP/1.0 allows
    return not hosts or (len(hosts) == 1 and _is_own(hosts[0].decode("latin-1"), names))


def is_request(begun: bytes) -> bool:
    """Return whether the bytes begin with a complete request line."""
    return _REQUEST_LINE.match(begun) is not None


def refusal(option: str) -> bytes:
    """Return the response to a refused request; `option` would allow it."""
    text = f"this port answers to localhost and 127.0.0.1; for another name of this machine: {option}\n"
    return _REFUSAL.format(len(text), text).encode()


def _is_own(host: str, names: Iterable[str]) -> bool:
    name = re.sub(r":\d*$", "", host).strip("[]").rstrip(".").lower()
    return (
        is_loopback(name) or name.endswith(".localhost") or name in {one.lower() for one in names}
    )
