"""Who may come to a jump host, through real ssh: those with keys, also while others fill it and guess."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import asyncssh
import pytest

from controlplane.jump_host import server
from controlplane.jump_host.server import MOST_STRANGERS, MOST_STRANGERS_OF_ADDRESS, JumpHost
from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = asyncssh.generate_private_key("ssh-ed25519")


@cache
def rsa_key() -> asyncssh.SSHKey:
    """Made for the tests that need it, and not by each worker that collects them."""
    return asyncssh.generate_private_key("ssh-rsa", key_size=3072)


class _Known(JumpHost):
    """One for which all keys of ours are kim's; `looked_up` counts how often that was asked."""

    def __init__(self, group: TaskGroup) -> None:
        super().__init__(cast("Any", None), "", group)
        self.looked_up = 0

    async def user_of(self, key: str) -> str:
        self.looked_up += 1
        return "kim" if key in {server._digest(one.public_data) for one in (KEY, rsa_key())} else ""


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[_Known, int]]:
    async with TaskGroup() as group:
        jump_host = _Known(group)
        options = jump_host.options(os.urandom(32))
        async with asyncssh.listen("127.0.0.1", 0, **options) as acceptor:
            yield jump_host, acceptor.get_port()


async def log_in(port: int, *keys: asyncssh.SSHKey, **options: Any) -> None:
    everywhere: Any = {"known_hosts": None, "config": None, "agent_path": None, "username": "x"}
    async with asyncssh.connect("127.0.0.1", port, client_keys=list(keys), **everywhere, **options):
        pass


async def hold(port: int, address: str, stack: AsyncExitStack) -> asyncio.StreamReader:
    """A connection that says nothing, once it is served."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    stack.callback(writer.close)
    assert await reader.readline() == b"SSH-2.0-nsml\r\n"
    return reader


async def test_whoever_holds_places_locks_nobody_out() -> None:
    async with listening() as (_, port), AsyncExitStack() as stack:
        every = [
            await hold(port, f"127.0.0.{10 + number % 8}", stack)
            for number in range(2 * MOST_STRANGERS)
        ]
        await log_in(port, KEY)
        await log_in(port, KEY, local_addr=("127.0.0.10", 0))
        # those that came first have left
        for reader in every[:MOST_STRANGERS]:
            assert b"SSH-2.0" not in await asyncio.wait_for(reader.read(), 60)


async def test_one_address_holds_places_of_its_own_alone() -> None:
    async with listening() as (_, port), AsyncExitStack() as stack:
        neighbour = await hold(port, "127.0.0.9", stack)
        of_one = [
            await hold(port, "127.0.0.10", stack) for _ in range(MOST_STRANGERS_OF_ADDRESS + 1)
        ]
        await asyncio.wait_for(of_one[0].read(), 60)
        assert not neighbour.at_eof()
        assert not of_one[1].at_eof()


async def test_who_guesses_keys_is_looked_up_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane is not asked faster than so, however many connections there are."""
    monkeypatch.setattr(server, "_LOOKS_AT_ONCE", 3)
    monkeypatch.setattr(server, "_LOOKS_PER_S", 0.001)
    others = [asyncssh.generate_private_key("ssh-ed25519") for _ in range(10)]
    async with listening() as (jump_host, port):
        guessing = [asyncio.create_task(log_in(port, *others)) for _ in range(3)]
        done, _ = await asyncio.wait(guessing, timeout=1)
        for one in guessing:
            one.cancel()
        await asyncio.gather(*guessing, return_exceptions=True)
        assert not done
        assert jump_host.looked_up <= 3


async def test_weak_algorithms_are_refused() -> None:
    async with listening() as (_, port):
        await log_in(port, rsa_key())
        with_sha1 = asyncssh.import_private_key(rsa_key().export_private_key())
        with_sha1.sig_algorithms = (b"ssh-rsa",)
        with pytest.raises(asyncssh.PermissionDenied):
            await log_in(port, with_sha1)
        await log_in(port, KEY, kex_algs=["curve25519-sha256"])
        for exchange in ("diffie-hellman-group18-sha512", "diffie-hellman-group14-sha1"):
            with pytest.raises(asyncssh.KeyExchangeFailed):
                await log_in(port, KEY, kex_algs=[exchange])
