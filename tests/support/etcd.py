"""A real etcd for tests: skipped where there is none, a failure where it is required."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.store.etcd_process import EtcdProcess, find_etcd
from nsml.common.clock import SystemClock

PATIENCE_S = 60.0
"""For a server to start on a busy machine."""


def require_etcd() -> Path:
    """The sound etcd on PATH. NSML_REQUIRE_ETCD=1 makes a missing one a failure."""
    binary = find_etcd()
    if binary is None:
        reason = "no sound etcd (3.4.21 or later, not 3.5.0 to 3.5.4) on PATH"
        if os.environ.get("NSML_REQUIRE_ETCD") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return binary


def etcd_in(folder: Path, **settings: int) -> EtcdProcess:
    """An etcd that is not started yet, with its data in `folder`."""
    return EtcdProcess(require_etcd(), folder, clock=SystemClock(), **settings)


def pause(pid: int) -> None:
    """SIGSTOP, and wait until every thread stands still: an answer could slip out before."""
    os.kill(pid, signal.SIGSTOP)
    ends_at = time.monotonic() + 60
    while time.monotonic() < ends_at:
        threads = Path(f"/proc/{pid}/task").glob("*/stat")
        if all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in threads):
            return
        time.sleep(0.001)
    raise AssertionError(f"process {pid} does not stop")


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """One etcd for the whole run: take a `root` of your own in it, and leave it running."""
    process = etcd_in(tmp_path_factory.mktemp("etcd"))
    process.start()
    try:
        asyncio.run(process.ready(PATIENCE_S))
        yield process
    finally:
        asyncio.run(process.stop())
