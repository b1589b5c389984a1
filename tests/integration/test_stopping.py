"""A control plane that is told to stop does so in bounded time, also while its store says nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.support.etcd import etcd_in, pause

WITHIN_S = 60.0
"""Of a busy machine; itself it takes about three seconds at most."""
READY_S = 60.0


@asynccontextmanager
async def a_control_plane(
    folder: Path, coordination: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = folder / "controlplane.toml"
    words = {"data": str(folder / "data"), "coordination": coordination, "address": "127.0.0.1:0"}
    settings.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in words.items()))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "controlplane.main", "--config", str(settings),
        stderr=asyncio.subprocess.DEVNULL, process_group=0,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def ends(process: asyncio.subprocess.Process) -> int:
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(WITHIN_S):
        return await process.wait()


async def serves(folder: Path, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(READY_S):
        while not (folder / "data/ready.json").exists():
            assert process.returncode is None
            await asyncio.sleep(0.05)


async def test_it_stops_while_its_store_is_silent(tmp_path: Path) -> None:
    etcd = etcd_in(tmp_path / "etcd")
    etcd.start()
    try:
        await etcd.ready()
        async with a_control_plane(tmp_path, etcd.endpoint) as process:
            await serves(tmp_path, process)
            pause(etcd.pid)
            try:
                assert await ends(process) == 0
            finally:
                os.kill(etcd.pid, signal.SIGCONT)
        assert not (tmp_path / "data/ready.json").exists()
    finally:
        await etcd.stop()


async def test_it_stops_before_its_store_has_ever_answered(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        async with a_control_plane(tmp_path, f"http://127.0.0.1:{port}") as process:
            async with asyncio.timeout(READY_S):
                await asyncio.get_running_loop().run_in_executor(None, silent.accept)
            assert await ends(process) == 0
