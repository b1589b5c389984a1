"""What a replica may use: kept by a control group where that works, and by looking elsewhere.

Every program here is ended by what keeps its limit, so each test says what it would do without one.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.folders import ReplicaId
from nodeagent.runtimes.container import OWN_PROCESSES
from nodeagent.runtimes.interface import ExitWhy, Isolation
from tests.contract.test_runtime_contract import (  # noqa: F401 - fixtures
    MARK,
    SESSION,
    Bench,
    bench_named,
    facts,
    nothing_left,
    process_bench,
    soon,
    tmp_path,
    until,
)
from tests.engines import required_engine, required_image
from tests.support import disks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nodeagent.runtimes.isolation import IsolationFacts

MEMORY = 200_000_000
LOOKED_AT_S = 1.5
"""Longer than a shim goes without looking."""
HOG = """
import sys, time
held = []
print("ready", flush=True)
for _ in range(400):
    held.append(bytearray(b"x") * (4 << 20))
    time.sleep(0.005)
time.sleep(1000)
"""
CHILD_HOG = "import subprocess, sys; subprocess.run([sys.executable, '-c', %r]); print('went on')"
FILLER = """
import os, sys, time
print("ready", flush=True)
files = [open(os.path.join(folder, "fill"), "wb", buffering=0) for folder in sys.argv[1:]]
for _ in range(3000):
    for file in files:
        file.write(os.urandom(1 << 18))
time.sleep(1000)
"""


@pytest.fixture(
    params=[
        "namespace",
        "docker",
        "own uid, watched",
        *(
            pytest.param(name, marks=pytest.mark.variant)
            for name in ("own uid", "user", "none", "namespace, watched", "none, watched")
        ),
    ]
)
async def limited(
    request: pytest.FixtureRequest,
    tmp_path: Path,  # noqa: F811
    facts: IsolationFacts,  # noqa: F811
) -> AsyncIterator[Bench]:
    name, _, watched = request.param.partition(", ")
    async with bench_named(name, tmp_path, facts, groups=not watched) as made:
        if name != "docker" and not watched and kept_by(made) != "group":
            pytest.skip(f"control groups do not work here: {made.limits.reason}")
        yield made


def kept_by(bench: Bench) -> str:
    if bench.isolation is Isolation.CONTAINER:
        return "engine"
    return str(bench.limits.keeping("memory"))


def has_own_root(bench: Bench) -> bool:
    return bench.isolation in {Isolation.NAMESPACE, Isolation.CONTAINER}


def python(bench: Bench, text: str, *arguments: str, rank: int = 0, **more):
    replica_id = ReplicaId(session_id=SESSION, attempt=1, rank=rank)
    argv = ("python3", "-c", text, *arguments)
    return bench.spec(argv=argv, replica_id=replica_id, **more)


async def test_a_memory_hog_dies_alone(limited: Bench) -> None:
    async with limited.new_driver() as driver:
        neighbour = python(
            limited, "import time; print('ready', flush=True); time.sleep(999)", rank=1
        )
        await driver.start(neighbour)
        await limited.ready(neighbour)
        hog = python(limited, HOG, memory_bytes=MEMORY)
        await driver.start(hog)
        record = await soon(driver.wait(hog.replica_id))
        assert not limited.folders.of(neighbour.replica_id).exit.exists()
        await driver.kill(neighbour.replica_id, reason="seen")
        other = await soon(driver.wait(neighbour.replica_id))
    assert record.why is ExitWhy.OUT_OF_MEMORY
    assert MEMORY * 0.9 <= record.memory_peak_bytes <= MEMORY * 4
    assert record.message.endswith("of 190.7 MiB given; try --memory 400M")
    assert other.why is ExitWhy.STOPPED


async def test_a_hog_below_the_program_ends_the_whole_replica(limited: Bench) -> None:
    async with limited.new_driver() as driver:
        spec = python(
            limited, CHILD_HOG % HOG + "; import time; time.sleep(999)", memory_bytes=MEMORY
        )
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.OUT_OF_MEMORY


async def test_one_that_keeps_to_its_memory_is_let_be(limited: Bench) -> None:
    async with limited.new_driver() as driver:
        text = f"held = bytearray(b'x') * 50_000_000; import time; time.sleep({LOOKED_AT_S})"
        spec = python(limited, text, memory_bytes=MEMORY)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.exit_code) == (ExitWhy.EXITED, 0)
    assert 50_000_000 <= record.memory_peak_bytes <= MEMORY


async def test_what_fills_its_share_of_the_disk_is_ended(limited: Bench) -> None:
    async with limited.new_driver() as driver:
        folders = ["/app", "/tmp", "/nsml"]
        if not has_own_root(limited):
            here = limited.folders.of(ReplicaId(session_id=SESSION, attempt=1, rank=0))
            folders = [str(here.app), str(here.tmp), str(here.run)]
        spec = python(limited, FILLER, *folders, disk_bytes=60_000_000)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.LIMIT_EXCEEDED
    assert record.message.startswith("wrote too much: ")
    assert record.message.endswith(" on disk of 60.0 MB given; try --disk 120M")


async def test_a_volume_of_an_image_counts_as_disk(
    tmp_path: Path,  # noqa: F811
    facts: IsolationFacts,  # noqa: F811
) -> None:
    """`VOLUME` in an image is no way past the limit, and leaves nothing with the engine."""
    async with bench_named("docker", tmp_path, facts, groups=True) as bench:
        engine, _ = required_engine()
        api = engine.sdk.api
        tag = f"nsml-volume-{MARK.lower()}:test"
        made = api.create_container(required_image(), command=["true"])["Id"]
        name, _, version = tag.partition(":")
        changes = ["VOLUME /cache", "ENV LD_PRELOAD=/none.so NSML_SIMULATED=1 SEEN=yes"]
        try:
            api.commit(made, repository=name, tag=version, changes=changes)
        finally:
            api.remove_container(made)
        before = {one["Name"] for one in api.volumes()["Volumes"] or ()}
        looks = (
            "import os; print({n: os.environ.get(n) for n in ('LD_PRELOAD', 'NSML_SIMULATED', 'SEEN')},"
            " open('/proc/1/environ').read().count('none.so'), flush=True)\n"
        )
        try:
            async with bench.new_driver() as driver:
                spec = python(bench, looks + FILLER, "/cache", disk_bytes=30_000_000, image=tag)
                await driver.start(spec)
                record = await soon(driver.wait(spec.replica_id))
                output = bench.output(spec).decode()
                assert (bench.folders.of(spec.replica_id).volume(0) / "fill").stat().st_size
                found = {one["Name"] for one in api.volumes()["Volumes"] or ()}
                await driver.remove(spec.replica_id)
        finally:
            api.remove_image(tag)
    assert record.why is ExitWhy.LIMIT_EXCEEDED
    assert "of 30.0 MB given" in record.message
    assert found <= before
    variables = "{'LD_PRELOAD': '/none.so', 'NSML_SIMULATED': None, 'SEEN': 'yes'} 0"
    assert variables in output, "the program has them, the engine's own programs do not"


async def test_output_counts_as_disk_and_so_does_what_has_no_name(limited: Bench) -> None:
    texts = {
        0: "import os, time\nfor _ in range(3000): os.write(1, b'y' * (1 << 18))\ntime.sleep(1000)",
        1: "import os, tempfile, time\nfile = tempfile.TemporaryFile(buffering=0)\n"
        "for _ in range(3000): file.write(os.urandom(1 << 18))\ntime.sleep(1000)",
    }
    async with limited.new_driver() as driver:
        for rank, text in texts.items():
            spec = python(limited, text, rank=rank, disk_bytes=60_000_000)
            await driver.start(spec)
            record = await soon(driver.wait(spec.replica_id))
            assert record.why is ExitWhy.LIMIT_EXCEEDED, (rank, record)


HIDES = """
import ctypes, mmap, os, socket, sys, tempfile, time
libc, held = ctypes.CDLL(None), []
for _ in range(100):
    file = tempfile.TemporaryFile(buffering=0)
    file.write(os.urandom(4 << 20))
    if sys.argv[1] == "mapped":
        # the module mmap would keep a descriptor
        libc.mmap(None, ctypes.c_size_t(4096), 1, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
    else:
        held.append(socket.socketpair())
        socket.send_fds(held[-1][0], [b"x"], [file.fileno()])
    file.close()
    time.sleep(0.02)
print("went on", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["mapped", "in flight"])
async def test_what_no_descriptor_leads_to_counts_as_disk(limited: Bench, how: str) -> None:
    if how == "mapped" and os.geteuid() != 0:
        pytest.skip("only root may look at what is mapped")
    async with limited.new_driver() as driver:
        spec = python(limited, HIDES, how, disk_bytes=60_000_000)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.LIMIT_EXCEEDED
    assert record.message.endswith(" of 60.0 MB given; try --disk 120M")


async def test_one_line_of_any_length_is_kept_whole(limited: Bench) -> None:
    text = "import os\nfor _ in range(64): os.write(1, b'z' * (1 << 20))"
    async with limited.new_driver() as driver:
        spec = python(limited, text, memory_bytes=MEMORY, disk_bytes=1 << 30)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert (record.exit_code, record.output_bytes) == (0, 64 << 20)


async def test_a_fork_bomb_is_kept_small_and_goes_with_its_replica(limited: Bench) -> None:
    # It doubles, in sessions of their own, but not for ever: a test that fails must not end the machine.
    bomb = """
import os, time
print("ready", flush=True)
for _ in range(10):
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
    time.sleep(0.2)
time.sleep(999)
"""
    async with limited.new_driver() as driver:
        spec = python(limited, bomb, process_count=100)
        await driver.start(spec)
        if is_kept_by_kernel(limited):
            await until(lambda: len(processes_of(spec.replica_id)) > 90)
            # the platform's own in a container bear the mark as well
            most = 100 + (OWN_PROCESSES if limited.isolation is Isolation.CONTAINER else 0)
            assert len(processes_of(spec.replica_id)) <= most
            await driver.stop(spec.replica_id, grace_s=0.1, reason="enough")
        record = await soon(driver.wait(spec.replica_id))
    if is_kept_by_kernel(limited):
        assert record.why is ExitWhy.STOPPED
    else:
        assert record.why is ExitWhy.LIMIT_EXCEEDED
        assert record.message.endswith(" of 100 given; try --processes 200")
    assert not processes_of(spec.replica_id)


def is_kept_by_kernel(bench: Bench) -> bool:
    is_root = os.geteuid() == 0 and bench.account is None
    return kept_by(bench) != "watched" or (has_own_root(bench) and not is_root)


async def test_a_group_holds_no_more_processes_than_it_is_given(limited: Bench) -> None:
    if not is_kept_by_kernel(limited):
        pytest.skip("counted by looking, where it would be ended")
    text = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
count = 1
try:
    while True:
        if os.fork() == 0:
            time.sleep(999)
        count += 1
except BlockingIOError:
    print(count, flush=True)
    raise SystemExit(4)
"""
    async with limited.new_driver() as driver:
        spec = python(limited, text, process_count=40)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.exit_code) == (ExitWhy.EXITED, 4)
    assert int(limited.output(spec)) == 40
    if kept_by(limited) == "group":
        assert record.message.endswith(" processes, once; try --processes 80")
    assert not processes_of(spec.replica_id)


async def test_as_many_processes_as_it_is_given_are_not_too_many(limited: Bench) -> None:
    text = f"import subprocess; n = ['sleep', '{LOOKED_AT_S}']; a = subprocess.Popen(n); subprocess.run(n); a.wait()"
    async with limited.new_driver() as driver:
        spec = python(limited, text, process_count=3)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.exit_code, record.message) == (ExitWhy.EXITED, 0, "")


async def test_one_process_is_enough_for_a_program_that_starts_none(limited: Bench) -> None:
    """Named by its path, of which an image's first line is read before it begins."""
    argv = ("/usr/bin/env", "python3", "-c", "print('ran')")
    async with limited.new_driver() as driver:
        spec = limited.spec(argv=argv, process_count=1)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.exit_code) == (ExitWhy.EXITED, 0)
    assert limited.output(spec) == b"ran\n"


@pytest.mark.parametrize("cpus", [0.01, 1000.0])
async def test_any_number_of_cores_can_be_given(limited: Bench, cpus: float) -> None:
    async with limited.new_driver() as driver:
        spec = limited.spec(argv=("true",), cpus=cpus)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert (record.why, record.exit_code) == (ExitWhy.EXITED, 0)


async def test_what_has_hardly_any_processor_time_still_ends_when_it_is_told_to(
    limited: Bench,
) -> None:
    """The kernel also counts what it overran, so such a program alone could end in minutes."""
    async with limited.new_driver() as driver:
        spec = limited.spec(argv=("sh", "-c", "while :; do :; done"), cpus=0.001)
        await driver.start(spec)
        await driver.kill(spec.replica_id, reason="seen enough")
        record = await soon(driver.wait(spec.replica_id))
    assert record.why is ExitWhy.STOPPED
    assert not processes_of(spec.replica_id)


async def test_cores_are_really_limited(limited: Bench) -> None:
    text = """
import os, time
if os.cpu_count() > 1 and os.fork() == 0:
    while True: pass
began = time.monotonic()
while time.monotonic() - began < 2: pass
"""
    if kept_by(limited) == "watched" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor is what it has anyway")
    async with limited.new_driver() as driver:
        spec = python(limited, text, cpus=1.0 if kept_by(limited) == "watched" else 0.5)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    used = (record.user_s + record.system_s) / record.duration_s
    # How much of it a busy machine gave is nobody's to say.
    assert 0 < used < (1.25 if kept_by(limited) == "watched" else 0.75)


async def test_the_record_says_what_a_program_used(limited: Bench) -> None:
    """Also of one that ends between two looks."""
    text = """
import time
held = bytearray(b"x") * 80_000_000
while time.process_time() < 0.5: pass
"""
    async with limited.new_driver() as driver:
        spec = python(limited, text)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert 0.4 < record.user_s + record.system_s < 5
    assert 80_000_000 <= record.max_rss_bytes <= record.memory_peak_bytes < 200_000_000


async def test_threads_that_leave_their_processors_are_brought_back(limited: Bench) -> None:
    if kept_by(limited) != "watched" or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("for limits that are watched, on more than one processor")
    text = """
import os, time
everywhere = range(os.cpu_count())
os.sched_setaffinity(0, everywhere)
while len(os.sched_getaffinity(0)) > 1: time.sleep(0.01)
print("brought back", flush=True)
"""
    async with limited.new_driver() as driver:
        spec = python(limited, text, cpus=0.7)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    assert (record.exit_code, limited.output(spec)) == (0, b"brought back\n")


DETACHED = """
import ctypes, os, sys
print("ready", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in range(3):
        os.close(number)
    # as setproctitle does: the environment is overwritten where the kernel shows it
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    ctypes.memset(begin, 0, end - begin)
    open(sys.argv[1], "w").write("here")
    import time
    time.sleep(999)
import time
time.sleep(999)
"""


async def test_a_detached_program_goes_with_its_killed_shim(limited: Bench) -> None:
    """Its environment is overwritten and it speaks to nothing: only a group, or a pid namespace, knows it."""
    if kept_by(limited) == "watched" and not has_own_root(limited):
        pytest.skip("nothing finds it here: docs say so")
    folder = limited.folders.of(ReplicaId(session_id=SESSION, attempt=1, rank=0))
    mark = "/app/mark" if has_own_root(limited) else str(folder.app / "mark")
    async with limited.new_driver() as driver:
        spec = python(limited, DETACHED, mark)
        await driver.start(spec)
        await until((folder.app / "mark").exists)
        marked = [pid for pid in all_pids() if mark.encode() in command_of(pid)]
        assert len(marked) >= 2
        limited.lose_shim(spec.replica_id)
        record = await soon(driver.wait(spec.replica_id))
        assert record.why is ExitWhy.SHIM_LOST
        assert not [pid for pid in marked if is_alive(pid)]


async def test_no_group_is_left(limited: Bench) -> None:
    if kept_by(limited) != "group":
        pytest.skip("there are no groups")
    places = [Path(one) for one in limited.limits.groups["folders"].values()]
    async with limited.new_driver() as driver:
        spec = python(limited, "print('ready', flush=True); import time; time.sleep(999)")
        await driver.start(spec)
        await limited.ready(spec)
        assert all((place / str(spec.replica_id)).is_dir() for place in places)
        await driver.kill(spec.replica_id, reason="enough")
        await soon(driver.wait(spec.replica_id))
        assert not any((place / str(spec.replica_id)).exists() for place in places)
        # and one that a dead agent and a dead shim left
        (places[0] / f"{SESSION}.9.9").mkdir()
    async with limited.new_driver():
        assert not (places[0] / f"{SESSION}.9.9").exists()
    assert not any(place.exists() for place in places)


async def test_all_programs_together_weigh_less_than_one_other_group(
    limited: Bench,
) -> None:
    if kept_by(limited) != "group" or "cpu" not in limited.limits.groups["folders"]:
        pytest.skip("there are no groups")
    programs = Path(limited.limits.groups["folders"]["cpu"])
    own, others = (256, 1024) if limited.limits.groups["version"] == 1 else (25, 100)
    name = "cpu.shares" if others == 1024 else "cpu.weight"

    async def weight(rank: int) -> int:
        waits = "print('ready', flush=True); import time; time.sleep(999)"
        async with limited.new_driver() as driver:
            spec = python(limited, waits, rank=rank)
            await driver.start(spec)
            await limited.ready(spec)
            found = int((programs / name).read_text())
            assert int((programs / str(spec.replica_id) / name).read_text()) == others
            await driver.kill(spec.replica_id, reason="seen")
            await soon(driver.wait(spec.replica_id))
        return found

    assert await weight(0) == own
    assert not await asyncio.to_thread(programs.exists), "the next program makes it again"
    assert await weight(1) == own


async def test_a_program_does_not_change_its_own_limits(limited: Bench) -> None:
    if kept_by(limited) != "group" or limited.isolation is not Isolation.NAMESPACE:
        pytest.skip("for groups of programs that are kept from the machine")
    places = [str(Path(one)) for one in limited.limits.groups["folders"].values()]
    text = """
import os, sys
for place in sys.argv[1:]:
    for folder in (place, os.path.join(place, os.environ["NSML_REPLICA"]), os.path.dirname(place)):
        for name in ("cgroup.procs", "memory.limit_in_bytes", "memory.max", "pids.max"):
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY))
                print("open:", folder, name)
            except OSError:
                pass
        try:
            os.mkdir(os.path.join(folder, "mine"))
            print("made in", folder)
        except OSError:
            pass
for name in os.listdir("/proc/self/fd"):
    try:
        print(os.readlink("/proc/self/fd/" + name))
    except OSError:
        pass
"""
    async with limited.new_driver() as driver:
        spec = python(limited, text, *places, memory_bytes=MEMORY, process_count=50)
        await driver.start(spec)
        record = await soon(driver.wait(spec.replica_id))
    said = limited.output(spec).decode()
    assert record.exit_code == 0, said
    assert "open:" not in said
    assert "made in" not in said
    assert "cgroup" not in said


async def test_below_the_floor_the_one_that_writes_is_ended(
    tmp_path: Path,  # noqa: F811
    facts: IsolationFacts,  # noqa: F811
    small_disk: Path,
) -> None:
    del tmp_path
    bench = process_bench(small_disk, facts, Isolation.NONE, zygote=True, floor=20_000_000)
    writes = "import os, sys, time\nwith open(sys.argv[1], 'wb') as file:\n"
    holds = writes + " file.write(b'x' * 20_000_000); file.flush()\n print('ready', flush=True)\n"
    holds += " while True: time.sleep(0.1); print('a line', flush=True)"
    fills = writes + " while True: file.write(b'x' * 1_000_000); time.sleep(0.02)"
    async with bench.new_driver() as driver:
        ids = [ReplicaId(session_id=SESSION, attempt=1, rank=rank) for rank in (0, 1)]
        holder = python(bench, holds, str(bench.folders.of(ids[0]).app / "held"))
        await driver.start(holder)
        await bench.ready(holder)
        filler = python(bench, fills, str(bench.folders.of(ids[1]).app / "fill"), rank=1)
        await driver.start(filler)
        record = await soon(driver.wait(filler.replica_id))
        assert not bench.folders.of(holder.replica_id).exit.exists()
        await driver.kill(holder.replica_id, reason="seen")
        await soon(driver.wait(holder.replica_id))
    assert record.why is ExitWhy.LIMIT_EXCEEDED
    assert "the node's disk is full" in record.message


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:  # noqa: F811
    with disks.small_disk(tmp_path / "small", "size=100m,mode=700") as folder:
        yield folder


def all_pids() -> list[int]:
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]


def command_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return state not in (b"Z", b"X")
    return False


def processes_of(replica_id: ReplicaId) -> list[int]:
    mark = f"NSML_REPLICA={replica_id}".encode()
    found = []
    for pid in all_pids():
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and is_alive(pid):
                found.append(pid)
    return found
