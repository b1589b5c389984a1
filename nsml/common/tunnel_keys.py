"""Mutual proof of a shared key, without sending it, at the start of a connection.

The listener proves itself first: an impostor at its address learns nothing of the clients.

    client     MAGIC, id of the key, nonce
    listener   nonce, proof
    client     proof
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

KEY_BYTES: Final = 32
_MAGIC: Final = b"nsmldir1"
_ID_BYTES: Final = 16
_NONCE_BYTES: Final = 32
HELLO_BYTES: Final = len(_MAGIC) + _ID_BYTES + _NONCE_BYTES
PROOF_BYTES: Final = hashlib.sha256().digest_size
ANSWER_BYTES: Final = _NONCE_BYTES + PROOF_BYTES


class NotProven(Exception):
    """The other end has another key."""


def id_of(key: bytes) -> bytes:
    """Return the id by which the listener selects the key."""
    return _digest(key, b"id")[:_ID_BYTES]


async def prove(
    exactly: Callable[[int], Awaitable[bytes]], send: Callable[[bytes], Awaitable[None]], key: bytes
) -> None:
    """The client's side. `exactly` reads a number of bytes; exceptions of it and `send` pass through.

    Raises:
        NotProven: the listener has another key.
    """
    hello = _MAGIC + id_of(key) + os.urandom(_NONCE_BYTES)
    await send(hello)
    answer = await exactly(ANSWER_BYTES)
    nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _digest(key, b"agent" + hello + nonce)):
        raise NotProven
    await send(_digest(key, b"client" + hello + nonce))


async def check(
    exactly: Callable[[int], Awaitable[bytes]],
    send: Callable[[bytes], Awaitable[None]],
    key_of: Callable[[bytes], bytes | None],
) -> bytes:
    """The listener's side; return the id of the client's key. `key_of` returns the key of an id, if expected.

    Raises:
        NotProven: the client has no expected key.
    """
    hello = await exactly(HELLO_BYTES)
    name = hello[len(_MAGIC) : len(_MAGIC) + _ID_BYTES]
    key = key_of(name)
    if not hello.startswith(_MAGIC) or key is None:
        raise NotProven
    nonce = os.urandom(_NONCE_BYTES)
    await send(nonce + _digest(key, b"agent" + hello + nonce))
    expected = _digest(key, b"client" + hello + nonce)
    if not hmac.compare_digest(await exactly(PROOF_BYTES), expected):
        raise NotProven
    return name


def _digest(key: bytes, words: bytes) -> bytes:
    return hmac.digest(key, words, "sha256")


# The same on a non-blocking socket, on the running loop: no later bytes are read.


async def prove_on(connected: socket.socket, key: bytes) -> None:
    """As `prove`; also raises OSError and EOFError."""
    loop = asyncio.get_running_loop()
    await prove(partial(_exactly, connected), partial(loop.sock_sendall, connected), key)


async def check_on(connected: socket.socket, key_of: Callable[[bytes], bytes | None]) -> bytes:
    """As `check`; also raises OSError and EOFError."""
    loop = asyncio.get_running_loop()
    return await check(partial(_exactly, connected), partial(loop.sock_sendall, connected), key_of)


async def _exactly(connected: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = await asyncio.get_running_loop().sock_recv(connected, size - len(found))
        if not data:
            raise EOFError
        found += data
    return found
