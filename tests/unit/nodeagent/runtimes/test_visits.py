"""What a shim that another version of the agent has started is asked for: only what its claim says."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeagent.folders import ReplicaFolder
from nodeagent.runtimes import visits
from nodeagent.runtimes.visits import NotAdmitted, VisitOrder, Visits
from nodeagent.shim.loopback import LISTENER
from nodeagent.shim.visitor import CONTAINED_SSH, COPY, KINDS, PROGRAM, SSH, VISIT

PROGRAM_ORDER = VisitOrder(argv=(), environment={}, terminal=None)
COPY_ORDER = VisitOrder(argv=(), environment={}, terminal=None, copy={"path": "x"})


@asynccontextmanager
async def closing(made: Awaitable[socket.socket]) -> AsyncIterator[socket.socket]:
    with await made as listener:
        yield listener


def asked(kind: str, folder: ReplicaFolder) -> AbstractAsyncContextManager[Any]:
    of_boot = Visits("boot")
    if kind == SSH:
        return of_boot.ssh_server(folder, "key")
    if kind == CONTAINED_SSH:
        return of_boot.ssh_server(folder, "key", socket.socket(socket.AF_UNIX))
    if kind == LISTENER:
        return closing(of_boot.listener(folder))
    return of_boot.started(folder, COPY_ORDER if kind == COPY else PROGRAM_ORDER)


DEAF = f"""
import signal, sys, time
signal.signal({int(VISIT)}, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""


@pytest.fixture
def shim() -> Iterator[subprocess.Popen[bytes]]:
    """One that does not hear the signal, which would end one that knows of none."""
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def claim(shim: subprocess.Popen[bytes]) -> dict[str, Any]:
    stat = Path(f"/proc/{shim.pid}/stat").read_bytes()
    ticks = int(stat.rpartition(b")")[2].split()[19])
    return {"pid": shim.pid, "start_ticks": ticks, "boot_id": "boot"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("admits", [None, True, [], [PROGRAM], [COPY, SSH], [*KINDS]])
async def test_a_shim_is_asked_only_for_what_it_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    claim: dict[str, Any],
    kind: str,
    admits: Any,
) -> None:
    monkeypatch.setattr(visits, "_ADMITTED_WITHIN_S", 0.1)
    folder = ReplicaFolder(tmp_path)
    folder.shim.write_text(json.dumps({**claim, "admits": admits}))
    is_asked = isinstance(admits, list) and kind in admits
    said = "lets nobody in within" if is_asked else "an earlier version of nsml"
    with pytest.raises(NotAdmitted, match=said):
        async with asked(kind, folder):
            pass
