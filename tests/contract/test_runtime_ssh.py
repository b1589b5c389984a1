"""ssh servers in a replica, at every level of isolation: where they are, what they may, and when they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from nodeagent.runtimes import contained_ssh
from nodeagent.runtimes.interface import Isolation, Mount
from nodeagent.runtimes.records import read_claim
from nodeagent.runtimes.visits import NotAdmitted
from tests.contract.test_runtime_contract import (
    PROCESS_BENCHES,
    Bench,
    bench_named,
    facts,
    nothing_left,
    soon,
    tmp_path,
    until,
)
from tests.contract.test_runtime_visits import RUNS_ON, SLEEP, running, sleepers, visits

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator

    from nodeagent.runtimes.interface import ReplicaSpec
    from nodeagent.runtimes.isolation import IsolationFacts

__all__ = ["facts", "nothing_left", "tmp_path"]

PAIR = Ed25519PrivateKey.generate()
KEY = PAIR.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
PUBLIC = asyncssh.import_private_key(KEY).convert_to_public()
ENOUGH = 3 << 20


@pytest.fixture(autouse=True)
async def no_zygote_stays() -> AsyncIterator[None]:
    """It ends with the agent, and is reaped."""
    yield
    visits().close()
    await until(lambda: not zygotes())


@pytest.fixture(params=[*PROCESS_BENCHES, "docker"])
async def real(
    request: pytest.FixtureRequest, tmp_path: Path, facts: IsolationFacts
) -> AsyncIterator[Bench]:
    async with bench_named(request.param, tmp_path, facts) as made:
        yield made


@pytest.fixture
async def docker(tmp_path: Path, facts: IsolationFacts) -> AsyncIterator[Bench]:
    async with bench_named("docker", tmp_path, facts) as made:
        yield made


def served(
    bench: Bench, spec: ReplicaSpec
) -> contextlib.AbstractAsyncContextManager[socket.socket]:
    """A connection to a server in the replica."""
    folder = bench.folders.of(spec.replica_id)
    plan = json.loads(folder.spec.read_bytes()).get("container")
    return (
        contained_ssh.server(visits(), folder, plan, PAIR, contained_ssh.Room())
        if plan
        else visits().ssh_server(folder, KEY)
    )


@asynccontextmanager
async def joined(bench: Bench, spec: ReplicaSpec) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """A client that believes the replica's key alone."""
    async with served(bench, spec) as server:
        client = asyncssh.connect(
            "replica",
            22,
            sock=server,
            config=None,
            known_hosts=([PUBLIC], [], []),
            server_host_key_algs=["ssh-ed25519"],
            username="anybody",
            client_keys=None,
        )
        async with client as connection:
            yield connection


async def said(
    connection: asyncssh.SSHClientConnection, script: str, given: bytes = b""
) -> tuple[bytes, bytes, int | None]:
    done = await soon(connection.run(script, input=given, encoding=None))
    assert isinstance(done.stdout, bytes)
    assert isinstance(done.stderr, bytes)
    return done.stdout, done.stderr, done.exit_status


async def test_programs_are_where_the_replicas_is(real: Bench) -> None:
    script = (
        "for n in user mnt pid ipc cgroup net; do readlink /proc/self/ns/$n; done; id -u; pwd; "
        "grep -E '^(Cap|NoNew|Seccomp|SigBlk|Umask)' /proc/self/status; ulimit -n; ulimit -c; "
        "cut -d: -f3 /proc/self/cgroup; "
        "env | grep -v -E '^(_|SHLVL|PWD|OLDPWD|TERM|SHELL)=' | sort"
    )
    text = f"bash -c '{script}' > $NSML_RUN_DIR/is 2>&1; {RUNS_ON}".replace("'^(", '"^(')
    text = text.replace(")' /", ')" /').replace("=' |", '=" |')
    async with running(real, text) as spec, joined(real, spec) as connection:
        out, err, code = await said(connection, script)
        assert (code, err) == (0, b"")
        program = (real.folders.of(spec.replica_id).run / "is").read_bytes()
        assert out.decode() == program.decode()


async def test_bytes_stay_apart_and_are_whole(real: Bench) -> None:
    given = bytes(range(256)) * (ENOUGH // 256)
    async with running(real) as spec, joined(real, spec) as connection:
        assert await said(connection, "cat; echo err >&2; exit 7", given) == (given, b"err\n", 7)
        assert await said(connection, "no-such-program") == (
            b"",
            b"bash: line 1: no-such-program: command not found\n",
            127,
        )
        many = await asyncio.gather(*[said(connection, f"echo {n}; exit {n}") for n in range(9)])
        assert many == [(b"%d\n" % n, b"", n) for n in range(9)]
        killed = await soon(connection.run("kill -TERM $$"))
        if real.isolation is Isolation.CONTAINER:  # of a signal its engine tells no more
            assert killed.exit_status == 128 + signal.SIGTERM
        else:
            assert killed.exit_signal is not None
            assert killed.exit_signal[0] == "TERM"


async def test_the_server_is_as_the_program_and_not_to_be_looked_into(real: Bench) -> None:
    async with running(real) as spec, joined(real, spec) as connection:
        name = "for one in /proc/[0-9]*; do if grep -q nsml-ssh $one/comm; then echo $one; fi; done"
        it, _, _ = await said(connection, f"{name} 2>/dev/null")
        server = it.decode().strip() if real.isolation is Isolation.CONTAINER else "/proc/$PPID"
        script = "cat {0}/comm; grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' {0}/status"
        out, _, _ = await said(connection, script.format(server))
        of_program, _, _ = await said(connection, script.format("/proc/self"))
        assert out.split(b"\n")[0] == b"nsml-ssh"
        assert out.split(b"\n")[1:] == of_program.split(b"\n")[1:]
        for one in ("environ", "mem", "fd/0", "root/etc", "map_files/"):
            _, _, code = await said(connection, f"cat {server}/{one} || ls {server}/{one}/.")
            assert code != 0 or real.isolation.value == "none", one


async def test_a_server_in_a_container_loads_nothing_of_the_image_and_has_no_key(
    docker: Bench, tmp_path: Path
) -> None:
    """The C library would load what an image's nsswitch.conf names, to look up a name."""
    names = tmp_path / "nsswitch.conf"
    names.write_text("passwd: hostile files\ngroup: hostile files\nhosts: hostile files\n")
    some = await asyncio.to_thread(lambda: next(Path("/usr/lib").glob("*-linux-gnu/libz.so.1")))
    library = tmp_path / "library"  # the loader knows the original
    shutil.copy(some, library)
    mounts = [
        Mount(source=names, target="/etc/nsswitch.conf"),
        Mount(source=library, target=f"{some.parent}/libnss_hostile.so.2"),
    ]
    async with running(docker, mounts=mounts) as spec, joined(docker, spec) as connection:
        async with connection.start_sftp_client() as files:
            assert "." in [one.filename for one in await files.readdir("/")]
        for host in ("localhost", "no.such.host.", "127.0.0.1"):
            with pytest.raises(asyncssh.ChannelOpenError):
                await soon(connection.open_connection(host, 9))
        assert await said(connection, "echo on") == (b"on\n", b"", 0)
        space, _, _ = await said(connection, "readlink /proc/self/ns/pid")
        [server] = [one for one in all_servers() if space_of(one) == space.decode().strip()]
        assert not [one.path for one in server.memory_maps() if "libnss_hostile" in one.path]
        [zygote] = zygotes()
        assert {one.path for one in server.memory_maps()} <= {
            one.path for one in zygote.memory_maps()
        }
        assert PUBLIC.public_data in memory_of(server.pid)
        assert PAIR.private_bytes_raw() not in memory_of(server.pid)


def all_servers() -> list[psutil.Process]:
    """Those of this machine."""
    return [one for one in psutil.process_iter(["name"]) if one.info["name"] == "nsml-ssh"]


def space_of(process: psutil.Process) -> str:
    with suppress(OSError):  # another's, which has ended
        return str(Path(f"/proc/{process.pid}/ns/pid").readlink())
    return ""


def memory_of(pid: int) -> bytes:
    found = b""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights = line.split()[:2]
            first, last = (int(one, 16) for one in place.split("-"))
            if rights.startswith("rw"):
                memory.seek(first)
                with suppress(OSError):
                    found += memory.read(last - first)
    return found


async def test_its_files_are_the_replicas(real: Bench) -> None:
    async with running(real) as spec, joined(real, spec) as connection:
        async with connection.start_sftp_client() as files:
            async with files.open("new", "wb") as file:
                await file.write(bytes(ENOUGH))
            assert (await files.stat("new")).size == ENOUGH
        out, _, _ = await said(connection, "stat -c %u new; id -u; wc -c < new")
        owner, uid, size = out.split()
        assert (owner, int(size)) == (uid, ENOUGH)


async def test_its_files_are_not_the_memory_of_its_server(real: Bench) -> None:
    """Its owner may open that, also where nobody else may."""
    async with running(real) as spec, joined(real, spec) as connection:
        await said(connection, "ln -s /proc/self/mem link; echo kept > mem")
        async with connection.start_sftp_client() as files:
            for path in ("/proc/self/mem", "/proc/thread-self/mem", "link"):
                with pytest.raises(asyncssh.SFTPPermissionDenied):
                    await files.open(path, "rb")
                with pytest.raises(asyncssh.SFTPError):  # it may be on what is read-only
                    await files.open(path, "r+b")
            async with files.open("mem") as file:
                assert await file.read() == "kept\n"
            async with files.open("/proc/self/stat") as file:
                assert await file.read(1)


async def test_a_connection_leads_to_its_own_loopback(real: Bench) -> None:
    async with running(real) as spec, joined(real, spec) as connection:
        serve = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); c, _ = s.accept(); c.sendall(b'here'); c.close()"
        async with connection.create_process(f'python3 -c "{serve}"') as program:
            port = int(await soon(program.stdout.readline()))
            reader, writer = await soon(connection.open_connection("127.0.0.1", port))
            assert await soon(reader.read()) == b"here"
            writer.close()
            await soon(program.wait())


async def test_a_connection_leads_to_a_socket_file_of_its_own(real: Bench) -> None:
    """As editors ask for; one that is not there is refused and ends nothing else."""
    async with running(real) as spec, joined(real, spec) as connection:
        serve = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('its'); s.listen(); print(flush=True); c, _ = s.accept(); c.sendall(b'here'); c.close()"
        async with connection.create_process(f'python3 -c "{serve}"') as program:
            await soon(program.stdout.readline())
            where, _, _ = await said(connection, "pwd")
            reader, writer = await soon(
                connection.open_unix_connection(f"{where.decode().strip()}/its")
            )
            assert await soon(reader.read()) == b"here"
            writer.close()
            await soon(program.wait())
        with pytest.raises(asyncssh.ChannelOpenError):
            await soon(connection.open_unix_connection("/no/such"))
        assert await said(connection, "echo on") == (b"on\n", b"", 0)


async def test_what_it_starts_ends_with_the_replica(real: Bench) -> None:
    async with running(real) as spec:
        async with served(real, spec) as server:
            connection = await soon(
                asyncssh.connect(
                    "replica",
                    22,
                    sock=server,
                    config=None,
                    known_hosts=([PUBLIC], [], []),
                    client_keys=None,
                )
            )
            for script in ("setsid nohup sleep {}", "trap '' HUP TERM; sleep {}"):
                await connection.create_process(script.format(SLEEP))
            await until(lambda: len(sleepers()) == 2)
            async with real.new_driver() as driver:
                await driver.stop(spec.replica_id, grace_s=0.0, reason="over")
                await soon(driver.wait(spec.replica_id))
            assert not sleepers()
            await soon(connection.wait_closed())
        with pytest.raises(NotAdmitted):
            async with served(real, spec):
                pass


async def test_who_leaves_ends_what_listens_to_that(real: Bench) -> None:
    async with running(real) as spec:
        async with joined(real, spec) as connection:
            await connection.create_process(f"sleep {SLEEP}; true")
            await until(lambda: len(sleepers()) == 1)
        await until(lambda: not sleepers())


async def test_a_server_that_a_program_in_its_container_kills_leaves_nothing(docker: Bench) -> None:
    async with running(docker) as spec:
        async with joined(docker, spec) as connection:
            await connection.create_process(f"sleep {SLEEP}; true")
            await until(lambda: len(sleepers()) == 1)
            kill = "grep -q nsml-ssh $one/comm && kill -9 ${one#/proc/}"
            broken = await soon(connection.run(f"for one in /proc/[0-9]*; do {kill}; done; echo"))
            assert (broken.exit_status, broken.stdout) == (None, "")
            await soon(connection.wait_closed())
            await until(lambda: not sleepers())
        async with joined(docker, spec) as connection:
            assert await said(connection, "exit 3") == (b"", b"", 3)


# -- what they are forked from ----------------------------------------------------------------------


def zygotes() -> list[psutil.Process]:
    """Those of this process."""
    return [one for one in psutil.Process().children() if one.name() == "nsml-ssh-zygote"]


def servers(spec: ReplicaSpec) -> list[psutil.Process]:
    """Those of this replica that are forked from what has all imported, here or before; others' tests have some, too."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_here = str(spec.replica_id) in Path(f"/proc/{one.pid}/cgroup").read_text()
            parent = one.parent()
            if is_here and one.name() == "nsml-ssh" and parent and parent.name() == "nsml-visitor":
                found.append(one)
    return found


def sockets_of(process: psutil.Process) -> set[str]:
    """All that it has open, but for what leads nowhere and what tells of events."""
    found = {str(one.readlink()) for one in Path(f"/proc/{process.pid}/fd").iterdir()}
    return {one for one in found if not one.startswith(("/dev/null", "anon_inode:"))}


@pytest.fixture
async def enclosed(tmp_path: Path, facts: IsolationFacts) -> AsyncIterator[Bench]:
    """A machine with control groups: elsewhere the shim must be a server's ancestor, to find what it starts."""
    async with bench_named("own uid", tmp_path, facts) as made:
        if made.limits.groups is None:
            pytest.skip(f"there are no control groups: {made.limits.reason}")
        yield made


async def test_servers_share_nothing_but_what_was_imported(enclosed: Bench) -> None:
    async with running(enclosed) as spec, joined(enclosed, spec) as first:
        [before] = servers(spec)
        async with joined(enclosed, spec) as second:
            [after] = [one for one in servers(spec) if one != before]
            assert [await said(one, "exit 3") for one in (first, second)] == [(b"", b"", 3)] * 2
            assert sockets_of(before)
            assert not sockets_of(before) & sockets_of(after)
            [zygote] = zygotes()
            assert not sockets_of(zygote) & (sockets_of(before) | sockets_of(after))


async def test_a_dead_zygote_ends_no_connection_and_is_started_again(enclosed: Bench) -> None:
    async with running(enclosed) as spec, joined(enclosed, spec) as first:
        [dead] = zygotes()
        dead.kill()
        await until(lambda: dead not in zygotes())
        async with joined(enclosed, spec) as second:
            assert [await said(one, "exit 3") for one in (first, second)] == [(b"", b"", 3)] * 2
            assert len(servers(spec)) == 2


async def test_one_that_stands_still_is_done_without(enclosed: Bench) -> None:
    """It dies before it has forked what the visitor waits for, which becomes a server itself."""
    async with running(enclosed) as spec:
        async with joined(enclosed, spec):
            [dead] = zygotes()
        dead.send_signal(signal.SIGSTOP)
        joining = asyncio.create_task(_exit_code(enclosed, spec))
        await until(lambda: bool(visitors_of(enclosed, spec)))
        dead.kill()
        assert await soon(joining) == 3
        await until(lambda: not servers(spec))


async def _exit_code(bench: Bench, spec: ReplicaSpec) -> int | None:
    async with joined(bench, spec) as connection:
        _, _, code = await said(connection, "exit 3")
        return code


def visitors_of(bench: Bench, spec: ReplicaSpec) -> list[psutil.Process]:
    """The shim's children but for the program."""
    claim = read_claim(bench.folders.of(spec.replica_id))
    assert claim is not None
    children = psutil.Process(claim.pid).children()
    return [one for one in children if one.name() == "nsml-shim"]


async def test_a_server_ends_with_the_shim_that_is_not_its_ancestor(enclosed: Bench) -> None:
    async with running(enclosed) as spec, joined(enclosed, spec) as connection:
        await connection.create_process(f"trap '' HUP; sleep {SLEEP}; true")
        await until(lambda: len(sleepers()) == 1)
        enclosed.lose_shim(spec.replica_id)
        await until(lambda: not servers(spec) and not sleepers())
