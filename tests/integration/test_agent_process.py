"""The whole agent as a process, over real gRPC, with real sessions."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from platform import python_version

import grpc.aio
import pytest

from nodeagent.probes.host import HostProbe
from nsml.content.manifest import decode
from nsml.content.packing import pack
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import resources_pb2 as resources
from nsml.v1 import sessions_pb2 as sessions
from tests.engines import SOCKET, required_engine, required_image
from tests.support.registry import registry_of
from tests.support.said import last_line
from tests.support.scripted_platform import ScriptedPlatform, assignment, session_id

PATIENCE_S = 60.0
S = session_id(1)
OTHER = session_id(2)


@dataclass
class Node:
    """A data folder, and the agent process that uses it at the moment."""

    data: Path
    config: Path
    platform: ScriptedPlatform
    process: asyncio.subprocess.Process | None = None
    settings: dict[str, object] = field(default_factory=dict)
    before: str = ""
    """What the agent's process does first."""

    async def start(self) -> None:
        seen = len(self.platform.registrations)
        self.process = await self.launch()
        try:
            await self.platform.until(lambda: len(self.platform.registrations) > seen)
        except TimeoutError:
            said = last_line(self.data.parent / "agent.log")
            raise AssertionError(f"the agent does not register: {said}") from None

    async def launch(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            f"{self.before}\nfrom nodeagent.main import main; main()",
            "--config",
            str(self.config),
            cwd=Path(__file__).parents[2],
            stderr=(self.data.parent / "agent.log").open("ab"),
        )

    async def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return await self.process.wait()

    def folder(self, session: str) -> Path:
        return self.data / "replicas" / f"{session}.1.0"


@pytest.fixture
async def platform() -> ScriptedPlatform:
    return ScriptedPlatform(heartbeat_s=0.5, patience_s=PATIENCE_S)


@pytest.fixture
async def node(platform: ScriptedPlatform, tmp_path: Path) -> AsyncIterator[Node]:
    server = grpc.aio.server()
    platform.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    config = tmp_path / "agent.toml"
    config.write_text(
        f'node = "n1"\nserver = "127.0.0.1:{port}"\ndata = "data"\nsimulate_gpus = 2\n'
        "longest_backoff_s = 0.3\nsample_interval_s = 0.2\n"
    )
    node = Node(tmp_path / "data", config, platform)
    try:
        await node.start()
        yield node
    finally:
        if node.process is not None and node.process.returncode is None:
            await platform.order()
            await until(lambda: not list((node.data / "replicas").iterdir()))
            await node.end()
        await server.stop(None)


def python(text: str) -> list[str]:
    return ["python3", "-u", "-c", text]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - files have no events
            await asyncio.sleep(0.02)


async def test_says_what_it_is_and_says_when_it_is_ready(node: Node) -> None:
    said = node.platform.registrations[0]
    assert [device.simulated for device in said.devices] == [True, True]
    assert said.capacity.gpu_thousandths == 2000
    assert said.capacity.memory_bytes > 0
    assert said.boot_id == HostProbe().facts().boot_id
    assert said.python_version == python_version()
    await until((node.data / "ready.json").exists)
    ready = json.loads((node.data / "ready.json").read_text())
    assert node.process is not None
    assert (ready["pid"], ready["simulated"]) == (node.process.pid, True)
    assert node.data.stat().st_mode & 0o777 == 0o700
    await until(lambda: len(node.platform.samples) > 2)
    sample = node.platform.samples[-1]
    assert [reading.uuid for reading in sample.devices] == [one.uuid for one in said.devices]
    assert sample.memory_used_bytes > 0
    assert await node.end() == 0
    assert not (node.data / "ready.json").exists()
    node.process = None


async def test_what_the_processes_of_each_session_take_is_told_while_they_run(
    node: Node, platform: ScriptedPlatform
) -> None:
    """One burns a processor in a child, beside many that end at once, and holds memory; the other sleeps."""
    busy = """
import subprocess, sys
held = b"x" * (96 << 20)
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
while child.poll() is None:
    subprocess.run(["true"])
"""
    await platform.order(assignment(S, *python(busy)), assignment(OTHER, "sleep", "1000"))

    def newest(session: str) -> pb.ReplicaSample | None:
        if not platform.samples:
            return None
        told = [one for one in platform.samples[-1].replicas if one.replica.session_id == session]
        return told[0] if told else None

    def is_seen() -> bool:
        mine, other = newest(S), newest(OTHER)
        return (
            mine is not None
            and other is not None
            and mine.cpu_cores > 0.1
            and mine.memory_used_bytes > 96 << 20
            and mine.process_count >= 2
            and other.cpu_cores < 0.1
            and other.memory_used_bytes < 96 << 20
            and other.process_count == 1
        )

    await until(is_seen)
    assert newest(S).replica == pb.ReplicaId(session_id=S, attempt=1, rank=0)  # type: ignore[union-attr]
    # A new agent finds what runs, and goes on telling.
    assert await node.end(signal.SIGKILL) == -signal.SIGKILL
    platform.samples.clear()
    await node.start()
    await until(is_seen)
    await platform.order(assignment(OTHER, "sleep", "1000"))
    await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    count = len(platform.samples)
    await until(lambda: len(platform.samples) > count + 2)
    assert newest(S) is None
    assert newest(OTHER) is not None


async def test_a_program_and_its_end(node: Node, platform: ScriptedPlatform) -> None:
    order = assignment(S, *python("import os; print(os.environ['NSML_SESSION_NAME']); exit(3)"))
    await platform.order(order, assignment(OTHER, "true"))
    report = await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    assert (report.exit.cause, report.exit.exit_code) == (sessions.CAUSE_PROGRAM_FAILED, 3)
    assert platform.log(S) == b"kim/None/1\n"
    assert report.python_version == python_version()
    report = await platform.phase(OTHER, pb.REPLICA_PHASE_FINALIZED)
    assert report.exit.cause == sessions.CAUSE_COMPLETED
    assert report.python_version == "", "it was given none"
    await until(lambda: not list((node.data / "replicas").iterdir()))


FEW_FILES = 200
CROWD = """
import os, resource, socket
os.chdir(os.environ["NSML_RUN_DIR"])
held = []
for _ in range(16):
    client = socket.socket(socket.AF_UNIX)
    client.connect("socket")
    held.append(client)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
held[0].sendall(b"{}\\n")
print(held[0].recv(100))
held[0].recv(1)
"""


async def test_programs_cannot_use_up_the_agents_descriptors(
    node: Node, platform: ScriptedPlatform
) -> None:
    await node.end()
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, found[1]))
    try:
        await node.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, found)
    crowd = [session_id(number) for number in range(1, 17)]
    await platform.order(*[assignment(one, *python(CROWD)) for one in crowd])
    for one in crowd:
        await platform.until(lambda one=one: b"INVALID" in platform.log(one))  # type: ignore[misc]
        assert platform.log(one).startswith(f"({FEW_FILES}, {found[1]})\n".encode())


async def test_a_program_that_cannot_be_started(node: Node, platform: ScriptedPlatform) -> None:
    await platform.order(assignment(S, "no-such-program"))
    report = await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    assert report.exit.cause == sessions.CAUSE_START_FAILED
    assert "no-such-program" in report.exit.message


async def test_a_program_that_is_stopped(node: Node, platform: ScriptedPlatform) -> None:
    order = assignment(S, "sh", "-c", "trap 'echo bye; exit 7' TERM; echo hi; sleep 1000 & wait")
    await platform.order(order)
    await platform.until(lambda: platform.log(S) == b"hi\n")
    order.stop.cause = sessions.CAUSE_STOP_REQUESTED
    order.stop.reason = "kim wants it"
    order.stop.grace.seconds = 20
    await platform.order(order)
    report = await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    assert report.exit.cause == sessions.CAUSE_STOP_REQUESTED
    assert report.exit.exit_code == 7
    assert platform.log(S) == b"hi\nbye\n"


async def test_a_second_agent_on_the_same_data_leaves(node: Node) -> None:
    second = await node.launch()
    assert await second.wait() == 3


LASTS = """
import threading
from pathlib import Path
from platform import python_version
from nodeagent import folders
from nodeagent.replica import preparation_steps
from nodeagent.probes import nvml
def last(*given):
    if "/trial/" in str(given):
        return  # of the isolation, before the agent's own
    with Path({began!r}).open("a") as began:
        began.write("x")
    threading.Event().wait()
{what} = last
"""
MORE_THAN_THE_POOL_HAS = 40


@pytest.mark.parametrize(
    "what",
    ["preparation_steps._copy", "folders.ReplicaFolder.free", "folders.ReplicaFolder.remove"],
)
async def test_what_lasts_for_some_holds_up_no_others(
    node: Node, platform: ScriptedPlatform, tmp_path: Path, what: str
) -> None:
    await node.end()
    began = tmp_path / "began"
    node.before = LASTS.format(began=str(began), what=what)
    await node.start()
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text("")
    some = [session_id(number) for number in range(1, MORE_THAN_THE_POOL_HAS + 1)]
    digest = put(platform, code)
    await platform.order(*[assignment(one, "echo", "x", bundle_digest=digest) for one in some])
    if what == "folders.ReplicaFolder.remove":
        for one in some:
            await platform.phase(one, pb.REPLICA_PHASE_FINALIZED)
        await platform.order()
    await until(lambda: began.exists() and began.stat().st_size == len(some))
    other = session_id(len(some) + 1)
    await platform.order(assignment(other, "echo", "hello"))
    await platform.phase(other, pb.REPLICA_PHASE_EXITED)
    await node.end(signal.SIGKILL)


async def test_a_driver_that_hangs_keeps_no_agent_from_its_end(node: Node, tmp_path: Path) -> None:
    await node.end()
    node.config.write_text(node.config.read_text().replace("simulate_gpus = 2\n", ""))
    began = tmp_path / "began"
    node.before = (
        LASTS.format(began=str(began), what="nvml.NvmlProbe.sample")
        + "\nfrom nodeagent.machine.devices import DeviceWatch\n"
        "DeviceWatch.__init__.__kwdefaults__['answers_within_s'] = 3.0"
    )
    await node.start()
    await until(began.exists)
    async with asyncio.timeout(PATIENCE_S):
        assert await node.end() == 0


REPORTS = """
import os, sys, time, nsml
print(nsml.__file__)
for step in range(300):
    nsml.report(step=step, loss=1 / (step + 1))
    print("step", step)
    time.sleep(0.01)
"""


@pytest.mark.every_time
async def test_killed_agents_lose_nothing(node: Node, platform: ScriptedPlatform) -> None:
    await platform.order(assignment(S, *python(REPORTS)))
    for step in (20, 120, 200):
        await platform.until(lambda step=step: len(platform.records(S)) > step)  # type: ignore[misc]
        read = len(platform.samples)
        await platform.until(lambda read=read: len(platform.samples) > read)  # type: ignore[misc]
        await node.end(signal.SIGKILL)
        platform.faults.lose_chunk_acks = step == 120
        await node.start()
        platform.faults.lose_chunk_acks = False
        if step == 120:
            platform.break_streams()
    report = await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    assert report.exit.exit_code == 0
    lines = platform.log(S).decode().splitlines()
    assert str(node.data / "sdk") in lines[0] or lines[0].startswith("/sdk/")
    assert lines[1:] == [f"step {step}" for step in range(300)]
    told = [json.loads(record) for record in platform.records(S)]
    assert [record["step"] for record in told] == list(range(300))
    assert len({one.exit.started_at.nanos for one in platform.said(S) if one.HasField("exit")}) == 1
    readings = [one.sequence for one in platform.samples]
    assert readings == sorted(set(readings)), (
        "a reading of a new agent would be dropped as an old one"
    )


async def test_an_end_without_an_agent_is_not_lost(node: Node, platform: ScriptedPlatform) -> None:
    await platform.order(assignment(S, *python("import time; time.sleep(1.5); exit(5)")))
    await platform.phase(S, pb.REPLICA_PHASE_RUNNING)
    await node.end(signal.SIGKILL)
    await until((node.folder(S) / "exit.json").exists)
    await node.start()
    assert platform.registrations[-1].replicas[0].exit.exit_code == 5
    report = await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    assert report.exit.exit_code == 5


async def test_much_output_arrives_byte_for_byte(node: Node, platform: ScriptedPlatform) -> None:
    text = "import os, sys\nfor n in range(400): os.write(1, bytes(range(256)) * 256)"
    await platform.order(assignment(S, *python(text)))
    await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    assert platform.log(S) == bytes(range(256)) * 256 * 400


async def test_code_runs_from_its_bundle_with_an_environment(
    node: Node, platform: ScriptedPlatform, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text(
        "import sys, os, other\n"
        "print(other.NAME, sys.argv[1:], open(os.environ['NSML_DATASET_PATH'] + '/x').read())\n"
        "print(os.getcwd(), sys.prefix != sys.base_prefix)\n"
        "open('written', 'w').write('x')\n"
    )
    (code / "other.py").write_text("NAME = 'other'")
    data = tmp_path / "set"
    data.mkdir()
    (data / "x").write_text("42")
    order = assignment(S, entry="main.py", args=["--lr", "0.1"], bundle_digest=put(platform, code))
    order.spec.datasets.add(name="kim/digits", version=1, digest=put(platform, data))
    await platform.order(order)
    report = await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    assert report.exit.cause == sessions.CAUSE_COMPLETED, platform.log(S).decode()
    first, second = platform.log(S).decode().splitlines()
    assert first == "other ['--lr', '0.1'] 42"
    folder, is_separate = second.split()
    assert folder == "/app" or folder.endswith("/app")
    assert is_separate == "True"


async def test_requirements_that_cannot_be_had(
    node: Node, platform: ScriptedPlatform, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text("print(1)")
    (code / "requirements.txt").write_text("git+https://example.org/x.git\n")
    await platform.order(assignment(S, entry="main.py", bundle_digest=put(platform, code)))
    report = await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    assert report.exit.cause == sessions.CAUSE_ENVIRONMENT_FAILED
    assert "example.org" in report.exit.message
    assert b"example.org" in platform.log(S)


SAVES = """
import os, sys, time, nsml
def save(path):
    with open(os.path.join(path, "weights"), "wb") as file:
        file.write(b"w" * 3_000_000 + sys.argv[1].encode())
nsml.bind(save=save, load=lambda path: None)
nsml.report(step=1, loss=0.5)
nsml.save("best")
nsml.save(3)
if len(sys.argv) > 2:
    time.sleep(1000)
"""


async def test_checkpoints_are_durable_before_the_session_is_final(
    node: Node, platform: ScriptedPlatform
) -> None:
    await platform.order(assignment(S, *python(SAVES), "v1"))
    await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    assert {commit.name for commit in platform.commits} == {"best", "3"}
    for commit in platform.commits:
        assert (commit.session_id, commit.attempt, commit.file_count) == (S, 1, 1)
        assert commit.size_bytes == 3_000_002
        manifest = decode(platform.blobs[commit.digest], digest=commit.digest)
        assert [entry.path for entry in manifest.entries] == ["weights"]
        data = b"".join(platform.blobs[ref.digest] for ref in manifest.refs())
        assert data == b"w" * 3_000_000 + b"v1"


async def test_a_killed_agent_sends_the_checkpoint_later(
    node: Node, platform: ScriptedPlatform
) -> None:
    platform.takes_blobs.clear()
    await platform.order(assignment(S, *python(SAVES), "v1"))
    await platform.phase(S, pb.REPLICA_PHASE_EXITED)
    await platform.until(lambda: len(platform.records(S)) == 3)
    await asyncio.sleep(0.3)
    assert not platform.said(S, pb.REPLICA_PHASE_FINALIZED)
    await node.end(signal.SIGKILL)
    platform.takes_blobs.set()
    await node.start()
    await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    assert {commit.name for commit in platform.commits} == {"best", "3"}


LOADS = """
import os, sys, nsml
def load(path):
    print(sorted(os.listdir(path)), os.path.getsize(os.path.join(path, "weights")))
nsml.bind(save=lambda path: None, load=load)
nsml.load("best", session=sys.argv[1])
try:
    nsml.load("worst", session=sys.argv[1])
except KeyError as error:
    print("KeyError", error)
"""


async def test_a_program_loads_another_sessions_checkpoint(
    node: Node, platform: ScriptedPlatform
) -> None:
    await platform.order(assignment(S, *python(SAVES), "v1"))
    await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    await platform.order(assignment(OTHER, *python(LOADS), S))
    report = await platform.phase(OTHER, pb.REPLICA_PHASE_FINALIZED)
    lines = platform.log(OTHER).decode().splitlines()
    assert lines[0] == "['weights'] 3000002", lines
    assert lines[1].startswith("KeyError")
    assert report.exit.exit_code == 0


async def test_an_engine_that_comes_later_is_used_once_nothing_runs(
    node: Node, platform: ScriptedPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    required_engine()
    door = tmp_path / "docker.sock"
    monkeypatch.setenv("NSML_AGENT_ENGINE_SOCKET", str(door))
    monkeypatch.setenv("NSML_AGENT_DEFAULT_IMAGE", required_image())
    await node.end()
    node.before = "from nodeagent import agent\nagent._LOOK_AGAIN_S = (0.2, 600.0)"
    await node.start()
    assert platform.registrations[-1].isolation != resources.ISOLATION_CONTAINER
    assert "no such socket" in platform.registrations[-1].isolation_note
    await platform.order(assignment(S, "sleep", "1000"))
    await platform.phase(S, pb.REPLICA_PHASE_RUNNING)
    seen = len(platform.registrations)
    door.symlink_to(SOCKET)
    await platform.order()
    await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)
    await platform.until(lambda: len(platform.registrations) > seen)
    assert platform.registrations[-1].isolation == resources.ISOLATION_CONTAINER
    await until((node.data / "ready.json").exists)
    said = json.loads((node.data / "ready.json").read_text())
    assert node.process is not None
    assert said["pid"] == node.process.pid, "who watches over it sees the same process"
    await platform.order(assignment(OTHER, "sh", "-c", "test -e /.nsml && exit 4", grace=0.0))
    assert (await platform.phase(OTHER, pb.REPLICA_PHASE_FINALIZED)).exit.exit_code == 4

    door.unlink()
    await node.end()
    node.process = await node.launch()
    await until((node.data / "starting.json").exists)
    assert await node.end() == 0, "who waits for an engine can be ended"
    node.process = await node.launch()
    await until((node.data / "starting.json").exists)
    seen = len(platform.registrations)
    door.symlink_to(SOCKET)
    await platform.until(lambda: len(platform.registrations) > seen)
    assert platform.registrations[-1].isolation == resources.ISOLATION_CONTAINER
    assert not (node.data / "starting.json").exists()


async def test_a_default_image_that_is_not_here_is_pulled_before_sessions_go_without(
    node: Node, platform: ScriptedPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = required_engine()
    monkeypatch.setenv("NSML_AGENT_ENGINE_SOCKET", str(SOCKET))
    with registry_of(engine, required_image(), password="hushhush") as registry:
        monkeypatch.setenv("NSML_AGENT_DEFAULT_IMAGE", registry.reference)
        await node.end()
        await node.start()
        said = platform.registrations[-1]
        assert said.isolation != resources.ISOLATION_CONTAINER
        assert f"image {registry.reference} is not on this node" in said.setting_note
        assert "cannot be pulled" in said.setting_note
        assert "registry_config" in said.isolation_note
        await node.end()
        access = tmp_path / "registry.json"
        access.write_text(json.dumps(registry.credentials))
        monkeypatch.setenv("NSML_AGENT_REGISTRY_CONFIG", str(access))
        await node.start()
        said = platform.registrations[-1]
        assert said.isolation == resources.ISOLATION_CONTAINER
        assert said.setting_note == ""
        assert not (node.data / "starting.json").exists()
        told = (tmp_path / "agent.log").read_text()
        assert '"image.pulled"' in told
        assert "hush" not in told
        await platform.order(assignment(S, "sh", "-c", "test -e /.nsml && exit 4", grace=0.0))
        assert (await platform.phase(S, pb.REPLICA_PHASE_FINALIZED)).exit.exit_code == 4
        await platform.order()
        await until(lambda: not list((node.data / "replicas").iterdir()))


def put(platform: ScriptedPlatform, folder: Path) -> str:
    packed = pack(folder)
    blobs = [packed.source.read(digest) for digest in packed.manifest.blobs()]
    return platform.put_manifest(packed.manifest.encode(), *blobs)
