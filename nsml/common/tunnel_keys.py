"""How two ends of a connection prove to each other that they have one key, which neither of them sends.

Who listens proves itself first: whoever only knows where it listens learns nothing of those who come.

    comes      MAGIC, id of the key, nonce
    listens    nonce, proof
    comes      proof
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
    """The other end is not who it should be."""


def id_of(key: bytes) -> bytes:
    """By which who listens knows which key is meant."""
    return _digest(key, b"id")[:_ID_BYTES]


async def prove(
    exactly: Callable[[int], Awaitable[bytes]], send: Callable[[bytes], Awaitable[None]], key: bytes
) -> None:
    """As who comes. `exactly` reads so many bytes; what it and `send` raise is raised.

    Raises:
        NotProven: who listens has another key.
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
    """As who listens; the id of the key that the other end has. `key_of` gives the key of an id, if one is expected.

    Raises:
        NotProven: it has none that is expected.
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


# The same on a socket that never blocks, on the running loop: nothing is read that comes after it.


async def prove_on(connected: socket.socket, key: bytes) -> None:
    """As `prove`; raises OSError and EOFError, too."""
    loop = asyncio.get_running_loop()
    await prove(partial(_exactly, connected), partial(loop.sock_sendall, connected), key)


async def check_on(connected: socket.socket, key_of: Callable[[bytes], bytes | None]) -> bytes:
    """As `check`; raises OSError and EOFError, too."""
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
