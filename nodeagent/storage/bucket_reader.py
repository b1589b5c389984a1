"""Reads parts of objects by presigned URLs. Blocking; may be used by several threads.

Uses the standard library's client: it follows no redirect, uses no proxy, and reads into an existing buffer.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from nsml.common.hosts import is_loopback

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_CONNECT_S: Final = 3.0
_SILENT_S: Final = 10.0
_READ_BYTES: Final = 1 << 20
_IDLE: Final = 8
"""Connections kept for the next part."""


class NotRead(Exception):
    """The bucket does not return a part. The message says why, and contains only the host of the URL."""


class Gone(NotRead):
    """The object does not exist (any more)."""


class Reading:
    """One read, which can be aborted from another thread."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_ended = False

    def end(self) -> None:
        """Abort the read."""
        with self._turn:
            self._is_ended = True
            if self._socket is not None:
                with suppress(OSError):
                    # without the shutdown of TLS: another thread reads from it
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def uses(self, connection: socket.socket) -> None:
        """Set the socket of the read. Raises NotRead if it was aborted."""
        with self._turn:
            if self._is_ended:
                raise NotRead("it is not wanted any more")
            self._socket = connection


class BucketReader:
    """Keeps connections open; `close` closes them.

    Args:
        authority: PEM of a CA beside those of the system; empty for none.
        allows_plaintext: from this machine only, never from another one.
    """

    def __init__(self, authority: bytes, *, allows_plaintext: bool) -> None:
        self.authority = authority
        self._allows_plaintext = allows_plaintext
        self._trust = ssl.create_default_context()
        if authority:
            self._trust.load_verify_locations(cadata=authority.decode("ascii", "replace"))
        self._turn = threading.Lock()
        self._idle: list[tuple[tuple[str, str], http.client.HTTPConnection]] = []
        self._is_closed = False

    def close(self) -> None:
        """Close idle connections; others are closed after use."""
        with self._turn:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def read(self, url: str, start: int, length: int, reading: Reading) -> bytearray:
        """Return `length` bytes from `start` on. Raises NotRead, also after an abort."""
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            raise NotRead("its URL is none") from None
        self._check(parts, host)
        where, connection = (parts.scheme, parts.netloc), None
        try:
            connection = self._take(where)
            is_fresh = connection is None
            connection = connection or self._connect(where)
            try:
                data = _ask(connection, parts, start, length, reading)
            except (ConnectionError, ssl.SSLEOFError):
                if is_fresh:
                    raise
                # The server closed it while it was idle.
                connection.close()
                connection = self._connect(where)
                data = _ask(connection, parts, start, length, reading)
        except NotRead as error:
            _close(connection)
            raise type(error)(f"{host}: {error}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            _close(connection)
            raise NotRead(f"{host}: {_words(error)}") from None
        self._put_back(where, connection)
        return data

    def _check(self, parts: SplitResult, host: str) -> None:
        is_plain = parts.scheme == "http" and is_loopback(host)
        if parts.scheme != "https" and not (is_plain and self._allows_plaintext):
            raise NotRead(f"{host}: it is not encrypted")

    def _take(self, where: tuple[str, str]) -> http.client.HTTPConnection | None:
        """Return an idle connection, or None."""
        with self._turn:
            for number, (place, connection) in enumerate(self._idle):
                if place == where:
                    del self._idle[number]
                    return connection
        return None

    def _connect(self, where: tuple[str, str]) -> http.client.HTTPConnection:
        scheme, netloc = where
        if scheme == "https":
            return http.client.HTTPSConnection(netloc, timeout=_CONNECT_S, context=self._trust)
        return http.client.HTTPConnection(netloc, timeout=_CONNECT_S)

    def _put_back(self, where: tuple[str, str], connection: http.client.HTTPConnection) -> None:
        with self._turn:
            if not self._is_closed and len(self._idle) < _IDLE:
                self._idle.append((where, connection))
                return
        _close(connection)


def _close(connection: http.client.HTTPConnection | None) -> None:
    if connection is not None:
        with suppress(OSError):
            connection.close()


def _ask(
    connection: http.client.HTTPConnection,
    parts: SplitResult,
    start: int,
    length: int,
    reading: Reading,
) -> bytearray:
    """Raises NotRead, OSError, HTTPException."""
    if connection.sock is None:
        connection.connect()
        cast("socket.socket", connection.sock).settimeout(_SILENT_S)
    reading.uses(connection.sock)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    last = start + length - 1
    connection.request("GET", path, headers={"Range": f"bytes={start}-{last}"})
    answer = connection.getresponse()
    if answer.status == http.HTTPStatus.NOT_FOUND:
        raise Gone("it is not there")
    if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
        raise NotRead(f"it answers {answer.status} to a read of a part")
    if not answer.getheader("Content-Range", "").startswith(f"bytes {start}-{last}/"):
        raise NotRead("it gives another part than was asked for")
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        count = answer.readinto(view[done : done + _READ_BYTES])
        if not count:
            raise NotRead("it gives less than was asked for")
        done += count
    if answer.read(1):
        raise NotRead("it gives more than was asked for")
    return data


def _words(error: Exception) -> str:
    """Describe why a bucket cannot be read, without text that it sent and without its URL."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason or 'its certificate does not count'}"
    if isinstance(error, OSError):
        return error.strerror or "it cannot be reached"
    return "it does not speak HTTP as it should"
