"""The relay's process: real, killed, started again, and gone with its control plane."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from controlplane.core import serving_process
from controlplane.health.warnings import failing_processes
from controlplane.state.agent_connections import RelayEnd
from controlplane.tunnels.relay_process import RelayProcess
from nsml.common.clock import SystemClock
from nsml.common.confinement import landlock_version
from nsml.common.tunnel_keys import prove_on


@pytest.fixture
async def relay(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RelayProcess]:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for the relay")
    monkeypatch.setattr(serving_process, "_RESTARTED_AFTER_S", 0.01)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    relay = RelayProcess(listener, address, random_bytes=os.urandom, clock=SystemClock())
    running = asyncio.create_task(relay.run())
    try:
        async with asyncio.timeout(60):
            await until(lambda: relay.pid != 0)
            yield relay
    finally:
        running.cancel()
        await asyncio.wait([running])


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)


async def joined(relay: RelayProcess) -> tuple[socket.socket, socket.socket]:
    ends = relay.expect("t", "kim")
    assert ends is not None
    return await there(ends[0]), await there(ends[1])


async def there(end: RelayEnd) -> socket.socket:
    host, _, port = end.address.rpartition(":")
    made = socket.socket()
    made.settimeout(0)
    await asyncio.get_running_loop().sock_connect(made, (host, int(port)))
    await prove_on(made, end.key)
    return made


async def passes(one: socket.socket, other: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(one, b"hello")
    assert await loop.sock_recv(other, 5) == b"hello"


async def is_closed(end: socket.socket) -> bool:
    with end:
        try:
            return await asyncio.get_running_loop().sock_recv(end, 5) == b""
        except ConnectionResetError:
            return True


async def test_bytes_pass_until_the_tunnel_is_over(relay: RelayProcess) -> None:
    one, other = await joined(relay)
    await passes(one, other)
    relay.forget("t")
    assert await is_closed(one)
    assert await is_closed(other)


async def test_it_takes_no_cpu_time_of_the_control_planes_share(relay: RelayProcess) -> None:
    assert os.getsid(relay.pid) == relay.pid


async def test_it_knows_no_secrets_of_the_control_plane(relay: RelayProcess) -> None:
    await passes(*await joined(relay))
    assert b"AWS" not in told_of(relay.pid, "environ")
    assert b"NoNewPrivs:\t1" in told_of(relay.pid, "status") or not landlock_version()


def told_of(pid: int, what: str) -> bytes:
    return Path(f"/proc/{pid}/{what}").read_bytes()


async def test_one_that_is_killed_breaks_tunnels_and_is_started_again(relay: RelayProcess) -> None:
    one, other = await joined(relay)
    killed = relay.pid
    os.kill(killed, signal.SIGKILL)
    assert await is_closed(one)
    assert await is_closed(other)
    await until(lambda: relay.pid not in {0, killed})
    one, other = await joined(relay)
    await passes(one, other)
    one.close()
    assert await is_closed(other)


async def test_one_that_ends_again_and_again_is_said_to(
    relay: RelayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until another has run for long enough."""
    killed = set[int]()
    while not relay.process.failing:
        assert failing_processes([relay.process]) == {}
        await until(lambda: relay.pid not in {0, *killed} or bool(relay.process.failing))
        if relay.pid:
            killed.add(relay.pid)
            os.kill(relay.pid, signal.SIGKILL)
            await until(lambda: relay.pid not in killed)
    assert len(killed) == 3
    assert failing_processes([relay.process]) == {"relay": "ended with code -9"}
    monkeypatch.setattr(serving_process, "STEADY_AFTER_S", 0.1)
    await until(lambda: not relay.process.failing)


async def test_while_there_is_none_nobody_is_sent_there() -> None:
    with socket.socket() as listener:
        relay = RelayProcess(listener, "x:1", random_bytes=os.urandom, clock=SystemClock())
        assert relay.expect("t", "kim") is None
        relay.forget("t")


async def test_it_ends_with_its_control_plane(relay: RelayProcess) -> None:
    """Whose end of its input a killed one's is, too."""
    process = relay.process._process
    assert process is not None
    assert process.stdin is not None
    started = relay.pid
    process.stdin.close()
    await until(lambda: relay.pid != started)
    assert not psutil.pid_exists(started)
