"""An engine that restarts under what runs: no end, no end that is lost, and none that is blamed on the program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nodeagent.engine.client import Engine, EngineError
from nodeagent.engine.containers import containers_of
from nodeagent.folders import ReplicaFolder, ReplicaFolders, ReplicaId
from nodeagent.runtimes.container import ContainerPlace
from nodeagent.runtimes.docker import DockerDriver, EnginePlace
from nodeagent.runtimes.interface import ExitWhy, Isolation, ReplicaSpec
from nodeagent.runtimes.launch import this_machine
from nodeagent.runtimes.launcher import Launcher
from nsml.common.clock import SystemClock, in_thread
from tests.contract.test_runtime_contract import MARK, SESSION, has_ended, soon, until
from tests.engines import SOCKET, absent, remove_with_mounts, required_image
from tests.support.said import last_line

REPLICA = ReplicaId(session_id=SESSION, attempt=2, rank=1)
"""Of this run alone: what is left of a replica whose shim is gone is found by this name, machine-wide, and killed."""

_FLAGS = ["--bridge", "none", "--iptables=false"]


class OwnEngine:
    """A dockerd of this test alone, which keeps containers while it is away unless it is said not to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.keeps_containers = True
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        flags = [*_FLAGS, *(["--live-restore"] if self.keeps_containers else [])]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["dockerd", "--data-root", str(self.folder / "data"), "--exec-root",
                 str(self.folder / "run"), "--pidfile", str(self.folder / "pid"),
                 "-H", f"unix://{self.socket}", *flags],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def start_surely(self) -> None:
        """Start it, and again where it gave up: on a busy machine it waits too shortly for its own."""
        for _ in range(3):
            self.start()
            with contextlib.suppress(TimeoutError):
                asyncio.run(until(lambda: self.answers() or self._ended()))
            if self.answers():
                return
            self.end(signal.SIGKILL)
        raise AssertionError(f"dockerd does not start: {last_line(self.folder / 'log')}")

    def live_restore(self, keeps: bool) -> None:
        if keeps != self.keeps_containers:
            self.end()
            self.keeps_containers = keeps
            self.start_surely()

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def answers(self) -> bool:
        try:
            return bool(Engine(self.socket).facts().version)
        except EngineError:
            return False

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(120)


@pytest.fixture(scope="module")
def engine() -> Iterator[OwnEngine]:
    if os.geteuid() or shutil.which("dockerd") is None:
        absent("an engine of its own needs root and dockerd")
    image = required_image()
    own = OwnEngine(Path(tempfile.mkdtemp(prefix="nsml-engine-")))
    try:
        own.start_surely()
        with subprocess.Popen(
            ["docker", "-H", f"unix://{SOCKET}", "save", image], stdout=subprocess.PIPE
        ) as saved:
            load = ["docker", "-H", f"unix://{own.socket}", "load"]
            loaded = subprocess.run(
                load, stdin=saved.stdout, capture_output=True, text=True, check=False
            )
        assert loaded.returncode == 0, f"docker load: {last_line(loaded.stderr)}"
        yield own
    finally:
        own.end()
        # with live restore it leaves its data mounted on themselves
        remove_with_mounts(own.folder)


@pytest.mark.parametrize("ends", ["while it is away", "once it is back"])
def test_a_restarted_engine_is_no_end(engine: OwnEngine, tmp_path: Path, ends: str) -> None:
    engine.live_restore(True)
    asyncio.run(_restarted(engine, tmp_path, ends_away=ends == "while it is away"))


@contextlib.asynccontextmanager
async def _running(
    engine: OwnEngine, tmp_path: Path, script: str
) -> AsyncIterator[tuple[Engine, DockerDriver, ReplicaFolder]]:
    """A container of `script`, which has printed "ready"."""
    folders = ReplicaFolders(tmp_path / "replicas")
    client = Engine(engine.socket)
    spec = ReplicaSpec(replica_id=REPLICA, argv=("sh", "-c", script), isolation=Isolation.CONTAINER)
    folder = folders.of(REPLICA)
    async with _driver(engine, client, folders) as driver:
        await driver.start(spec)
        await until(lambda: folder.output.read_bytes() == b"ready\n")
        await until(lambda: b"child" in folder.shim.read_bytes())
        yield client, driver, folder
    client.close()


def _driver(engine: OwnEngine, client: Engine, folders: ReplicaFolders) -> DockerDriver:
    container = ContainerPlace(
        node="test", mark=MARK, user=f"{os.getuid()}:{os.getgid()}", open_files=(1024, 4096),
        network="none",
    )  # fmt: skip
    return DockerDriver(
        folders,
        machine=this_machine(with_pid=True),
        place=EnginePlace(
            engine=client, api=client.facts().api, container=container,
            default_image=required_image(), root=engine.folder / "data",
        ),
        launcher=Launcher(in_thread), clock=SystemClock(), run=in_thread, run_long=in_thread,
    )  # fmt: skip


async def _restarted(engine: OwnEngine, tmp_path: Path, *, ends_away: bool) -> None:
    script = "echo ready; until [ -e $NSML_RUN_DIR/go ]; do sleep 0.02; done; echo end; exit 7"
    async with _running(engine, tmp_path, script) as (client, driver, folder):
        shim = (await driver.list())[0].pid
        assert shim is not None
        await in_thread(engine.end)
        if ends_away:
            (folder.run / "go").touch()
            await until(lambda: folder.output.read_bytes().endswith(b"end\n"))
        assert not folder.exit.exists()
        assert not has_ended(shim)
        engine.start()
        await until(engine.answers)
        (folder.run / "go").touch()
        record = await soon(driver.wait(REPLICA))
        await until(lambda: containers_of(client, MARK) == [])
    assert (record.why, record.exit_code) == (ExitWhy.EXITED, 7)
    assert folder.output.read_bytes() == b"ready\nend\n"


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.variant)]
)
def test_an_end_with_its_engine_is_no_programs(
    engine: OwnEngine, tmp_path: Path, number: signal.Signals
) -> None:
    engine.live_restore(False)
    asyncio.run(_lost(engine, tmp_path, number))


async def _lost(engine: OwnEngine, tmp_path: Path, number: signal.Signals) -> None:
    """It takes the signal and leaves with code 0, as what has saved does; its engine stopped it all the same."""
    script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    async with _running(engine, tmp_path, script) as (client, driver, _):
        client.close()
        await until(lambda: _is_held(engine))
        await in_thread(lambda: engine.end(number))
        await in_thread(engine.start_surely)
        record = await soon(driver.wait(REPLICA))
        await driver.remove(REPLICA)
    assert (record.why, record.exit_code, record.signal) == (ExitWhy.ENGINE_LOST, None, None)
    assert "container engine" in record.message


def _is_held(engine: OwnEngine) -> bool:
    """Whether anybody has a connection to the engine."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return any(line.split()[5] == "03" and line.endswith(f" {engine.socket}") for line in lines)
