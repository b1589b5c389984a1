"""Who may use a port that a command of this user opened on the loopback: this user, and no foreign web page.

The loopback belongs to everybody on the machine. The kernel lists each connection's two ends with the users that
opened them, so the other end of one that was accepted tells who is there. A page of another site is loaded by
the user's own browser; where its name was made to lead to the loopback (DNS rebinding), it is told by that name,
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
"""The longest head of a request that is looked at; a longer one is refused."""

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^\r\n]* HTTP/1\.[0-9]\r?\n")
_ITS_BEGINNING = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]*( [^\r\n]*\r?)?")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_REFUSAL = (
    "HTTP/1.1 421 Misdirected Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    "Content-Length: {}\r\nConnection: close\r\n\r\n{}"
)


class CannotTell(Exception):
    """This system does not say who connected."""


def user_at(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The uid of who opened the other end of a connection on this machine; None: it is open no more.

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
    """As `user_at`, by the texts of /proc/net/tcp and tcp6."""
    ends = {(near, far) for near in _written(*peer) for far in _written(*here)}
    for table in tables:
        for line in table.splitlines()[1:]:
            fields = line.split()
            # a socket that its program has closed has no inode, and nobody's uid
            if (fields[1], fields[2]) in ends and fields[9] != "0":
                return int(fields[7])
    return None


def _written(host: str, port: int) -> list[str]:
    """An IPv4 address and port as the kernel writes them, also of a socket for both versions."""
    packed = ipaddress.IPv4Address(host).packed
    words = []
    for address in (packed, ipaddress.IPv6Address(f"::ffff:{host}").packed):
        parts = [address[at : at + 4] for at in range(0, len(address), 4)]
        value = "".join(f"{int.from_bytes(part, sys.byteorder):08X}" for part in parts)
        words.append(f"{value}:{port:04X}")
    return words


def may_pass(begun: bytes, names: Iterable[str] = ()) -> bool | None:
    """Whether what a client says first may be passed on: no HTTP, or a request to this machine.

    A browser keeps a connection to one name, so that its first request decides.

    Args:
        begun: what has come so far.
        names: of this machine, beside those of the loopback.

    Returns:
        None where more has to come before that is known.
    """
    if not _REQUEST_LINE.match(begun):
        whole = _ITS_BEGINNING.fullmatch(begun)
        if not whole:
            return True
        # What may still be a request is none that may pass: a page can ask for a target of any length.
        return None if len(begun) < MOST_HEAD_BYTES else False
    end = _HEAD_END.search(begun)
    if end is None:
        return None if len(begun) < MOST_HEAD_BYTES else False
    hosts = re.findall(
        rb"^host[ \t]*:[ \t]*(.*?)[ \t]*$",
        begun[: end.start()].replace(b"\r", b""),
        re.IGNORECASE | re.MULTILINE,
    )
    # programs without browsers may leave it out, which HTTP/1.0 allows
    return not hosts or (len(hosts) == 1 and _is_own(hosts[0].decode("latin-1"), names))


def is_request(begun: bytes) -> bool:
    """Whether what has come begins with a whole request line."""
    return _REQUEST_LINE.match(begun) is not None


def refusal(option: str) -> bytes:
    """The answer to a request that may not be passed on; `option` would let it."""
    text = f"this port answers to localhost and 127.0.0.1; for another name of this machine: {option}\n"
    return _REFUSAL.format(len(text), text).encode()


def _is_own(host: str, names: Iterable[str]) -> bool:
    name = re.sub(r":\d*$", "", host).strip("[]").rstrip(".").lower()
    return (
        is_loopback(name) or name.endswith(".localhost") or name in {one.lower() for one in names}
    )
