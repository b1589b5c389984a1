"""Files that are copied out of a replica and into it while it runs: by whom, and what passes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import stat
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.visits import VisitOrder
from nsml.copying import sync_messages as sync
from nsml.copying.messages import (
    BEGIN,
    CONTENT,
    CONTENT_END,
    DONE,
    Incoming,
    Refused,
    message,
)
from nsml.copying.receiver import Receiver
from nsml.copying.sender import Sender
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
from tests.contract.test_runtime_visits import visits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.runtimes.interface import ReplicaSpec
    from nodeagent.runtimes.isolation import IsolationFacts
    from nodeagent.runtimes.visits import Output, Visit
    from nsml.copying.messages import Report

__all__ = ["facts", "nothing_left", "tmp_path"]

RUNS_ON = "echo ready; while :; do sleep 0.05; done"


@pytest.fixture(params=[*PROCESS_BENCHES, "docker"])
async def real(
    request: pytest.FixtureRequest, tmp_path: Path, facts: IsolationFacts
) -> AsyncIterator[Bench]:
    async with bench_named(request.param, tmp_path, facts) as made:
        yield made


@asynccontextmanager
async def running(bench: Bench, text: str = "", **spec: object) -> AsyncIterator[ReplicaSpec]:
    async with bench.new_driver() as driver:
        made = bench.sh(f"{text}\n{RUNS_ON}", cwd="/app", **spec)
        await driver.start(made)
        await bench.ready(made)
        try:
            yield made
        finally:
            await driver.stop(made.replica_id, grace_s=0.0, reason="over")
            await soon(driver.wait(made.replica_id))


@asynccontextmanager
async def copying(
    bench: Bench, spec: ReplicaSpec, path: str, *, sends: bool, name: str = ""
) -> AsyncIterator[Visit]:
    copy = {"path": path, "sends": sends, "name": name}
    order = VisitOrder(argv=(), environment={}, terminal=None, copy=copy)
    async with visits().started(bench.folders.of(spec.replica_id), order) as visit:
        yield visit


async def joined(visit: Visit, side: Sender | Receiver) -> Report:
    """Do this side's part over the visit's streams."""
    steps = side.steps()
    said = next(steps)
    output = visit.sources[0]
    try:
        while True:
            if said:
                await soon(visit.write(said))
                said = next(steps)
            else:
                _, came = await soon(anext(output))
                said = steps.send(came)
    except StopIteration:
        assert side.report is not None
        return side.report


async def copied_out(bench: Bench, spec: ReplicaSpec, path: str, target: Path) -> Report:
    async with copying(bench, spec, path, sends=True) as visit:
        name = os.fsencode(Path(path).name)
        receiver = Receiver(os.fsencode(target), name, keeps_inside=True)
        return await joined(visit, receiver)


async def copied_in(bench: Bench, spec: ReplicaSpec, source: Path, path: str) -> Report:
    async with copying(bench, spec, path, sends=False, name=source.name) as visit:
        return await joined(visit, Sender(os.fsencode(source)))


TREE = r"""
mkdir -p d/sub/empty
printf one > d/one; printf two > d/sub/two
chmod 750 d/one; touch -d @1000000000.5 d/one; touch -d @900000000 d/sub
ln -s sub/two d/link; ln d/one d/hard
printf x > "$(printf 'd/line\nbreak\033[2J')"; printf y > "$(printf 'd/\377')"
ln -s ../../etc/passwd d/leads_out; ln -s loop d/loop
mkfifo d/pipe
"""


async def test_a_folder_comes_out_as_it_is(real: Bench, tmp_path: Path) -> None:
    async with running(real, TREE) as spec:
        report = await copied_out(real, spec, "d", tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "one").read_bytes() == b"one"
    facts = (out / "one").stat()
    assert (stat.S_IMODE(facts.st_mode), facts.st_mtime_ns) == (0o750, 1_000_000_000_500_000_000)
    assert (out / "sub").stat().st_mtime == 900_000_000
    assert (out / "sub/empty").is_dir()
    assert (out / "link").readlink() == Path("sub/two")
    assert (out / "hard").samefile(out / "one")
    assert (out / "line\nbreak\x1b[2J").read_bytes() == b"x"
    assert (out / os.fsdecode(b"\xff")).read_bytes() == b"y"
    assert (out / "loop").readlink() == Path("loop")
    assert report.files == 4
    assert sorted(path for path, _ in report.failures) == [b"leads_out", b"pipe"]
    assert not (out / "pipe").exists()
    assert not (out / "leads_out").is_symlink()


async def test_a_folder_goes_in_for_the_session_alone(real: Bench, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "sub").mkdir(parents=True)
    (source / "one").write_bytes(b"one" * 100_000)
    (source / "link").symlink_to("/etc/hostname")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(source / "socket"))
    async with running(real) as spec:
        report = await copied_in(real, spec, source, ".")
        again = await copied_in(real, spec, source, ".")
        inside = real.folders.of(spec.replica_id).app / "in"
        assert (inside / "one").read_bytes() == b"one" * 100_000
        assert (inside / "link").readlink() == Path("/etc/hostname")
        program = real.folders.of(spec.replica_id).app.stat()
        assert (inside / "one").stat().st_uid == program.st_uid
    listening.close()
    assert (report.files, report.failures) == (1, [(b"socket", "a socket")])
    assert (again.files, again.skipped) == (0, 1)


async def test_a_folder_kept_in_step_gets_files_of_the_session(real: Bench) -> None:
    content = b"import this"
    file = sync.File(hashlib.sha256(content).hexdigest(), False)
    said = [
        message(BEGIN, sync.VERSION),
        sync.order_message(sync.Put(b"d/main.py", file, len(content), 1, None)),
        message(CONTENT, content),
        message(CONTENT_END, ""),
        sync.order_message(sync.Put(b"own", file, 0, 1, None)),
        message(CONTENT_END, ""),
        message(DONE),
    ]
    async with running(real, "echo theirs > own") as spec:
        copy = {"path": ".", "sends": False, "name": "", "keeps_in_step": True}
        order = VisitOrder(argv=(), environment={}, terminal=None, copy=copy)
        app = real.folders.of(spec.replica_id).app
        async with visits().started(real.folders.of(spec.replica_id), order) as visit:
            await soon(visit.write(b"".join(said)))
            incoming = Incoming()
            kinds = [await _said(incoming, visit.sources[0]) for _ in range(2)]
        [(_, _), (kind, results)] = kinds
        assert kind == sync.RESULTS
        assert [one.outcome for one in sync.results_of(results, 2)] == [sync.DONE, sync.KEPT]
        assert (app / "d/main.py").read_bytes() == content
        assert (app / "d/main.py").stat().st_uid == app.stat().st_uid
        assert (app / "own").read_text() == "theirs\n"


async def _said(
    incoming: Incoming, output: AsyncIterator[tuple[Output, bytes]]
) -> tuple[bytes, object]:
    """The next message of the session's side."""
    steps = incoming.next()
    try:
        next(steps)
        while True:
            _, came = await soon(anext(output))
            steps.send(came)
    except StopIteration as done:
        return done.value


async def test_what_its_user_cannot_read_is_not_read(real: Bench, tmp_path: Path) -> None:
    async with running(real, "mkdir d; printf a > d/a; printf b > d/b") as spec:
        app = real.folders.of(spec.replica_id).app
        if app.stat().st_uid == os.geteuid() == 0 and real.isolation is not Isolation.CONTAINER:
            pytest.skip("its user is root here")
        os.chown(app / "d/b", 0, 0)
        (app / "d/b").chmod(0o600)
        (app / "outside").symlink_to("/etc/shadow")
        if real.isolation is Isolation.CONTAINER:  # root without its rights
            os.chown(app / "d/b", 12345, 12345)
        report = await copied_out(real, spec, "d", tmp_path / "out")
        assert report.failures == [(b"b", "Permission denied")]
        assert report.files == 1
        if real.isolation is Isolation.CONTAINER:
            return  # root without its rights owns that
        for path in ("outside", "/etc/shadow"):
            with pytest.raises(Refused):
                await copied_out(real, spec, path, tmp_path / "shadow")
    assert not (tmp_path / "shadow").exists()


async def test_what_cannot_be_is_said(real: Bench, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    async with running(real, "mkdir full; ln -s loop loop; mkfifo pipe") as spec:
        for path, why in (
            ("no-such", "No such file"),
            ("loop", "Too many levels"),
            ("pipe", "neither"),
        ):
            with pytest.raises(Refused, match=why):
                await copied_out(real, spec, path, tmp_path / "out")
        with pytest.raises(Refused, match="No such file"):
            await copied_in(real, spec, file, "no/such/folder")
    assert not (tmp_path / "out").exists()


async def test_it_has_no_right_and_ends_with_its_client(real: Bench) -> None:
    async with running(real, "printf x > x") as spec:
        async with copying(real, spec, "x", sends=True) as visit:
            await soon(anext(visit.sources[0]))
            shim = json.loads(real.folders.of(spec.replica_id).shim.read_bytes())["pid"]
            [pid] = [one for one in servers() if is_below(one, shim)]
            shown = status_of(pid)
            program = real.folders.of(spec.replica_id).app.stat().st_uid
            assert set(shown["Uid"].split()) == {str(program)}
            if real.isolation in {Isolation.NAMESPACE, Isolation.CONTAINER} or program:
                assert int(shown["CapEff"], 16) == int(shown["CapPrm"], 16) == 0
                assert shown["NoNewPrivs"] == "1"
            if real.isolation in {Isolation.NAMESPACE, Isolation.CONTAINER}:
                assert shown["Seccomp"] == "2"
            assert shown["Open"] == "x"  # and its streams
            # nobody without rights looks into it, also where it is whom they are
            assert shown["Owner"] == "0"
        await until(lambda: pid not in servers())


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    shown = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    folder = Path(f"/proc/{pid}")
    beside_streams = [one for one in (folder / "fd").iterdir() if int(one.name) > 2]
    names = " ".join(one.readlink().name for one in beside_streams)
    return {**shown, "Open": names, "Owner": str((folder / "mem").stat().st_uid)}


def servers() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text(encoding="ascii").strip() == "nsml-cp":
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def is_below(pid: int, shim: int) -> bool:
    while pid not in {0, shim}:
        try:
            facts = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:  # of another test, and gone
            return False
        pid = int(facts.rpartition(")")[2].split()[1])
    return pid == shim


async def test_it_ends_with_the_replica(real: Bench) -> None:
    begun = running(real, "printf x > x")
    async with begun as spec, copying(real, spec, "x", sends=True) as visit:
        async with real.new_driver() as driver:
            await driver.stop(spec.replica_id, grace_s=0.0, reason="over")
            await soon(driver.wait(spec.replica_id))
        assert await soon(visit.ended()) in {(None, 9), (None, None)}


async def test_many_at_once(real: Bench, tmp_path: Path) -> None:
    async with running(real, "printf x > x") as spec:
        every = [copied_out(real, spec, "x", tmp_path / str(number)) for number in range(10)]
        reports = await asyncio.gather(*every)
    assert [one.files for one in reports] == [1] * 10


async def test_more_than_its_memory_passes_both_ways(real: Bench, tmp_path: Path) -> None:
    source = tmp_path / "big"
    source.write_bytes(os.urandom(1 << 20) * 200)
    async with running(real, memory_bytes=64 << 20) as spec:
        await copied_in(real, spec, source, "big")
        await copied_out(real, spec, "big", tmp_path / "out")
        assert real.folders.of(spec.replica_id).exit.exists() is False
    assert (tmp_path / "out").read_bytes() == source.read_bytes()


async def test_nothing_is_written_where_its_programs_cannot(real: Bench, tmp_path: Path) -> None:
    source = tmp_path / "x"
    source.write_bytes(b"x")
    async with running(real) as spec:
        if real.isolation in {Isolation.NAMESPACE, Isolation.CONTAINER}:
            with pytest.raises(Refused, match="cannot be written to"):
                await copied_in(real, spec, source, "/usr/")
        locked = real.folders.of(spec.replica_id).app / "locked"
        locked.mkdir()
        locked.chmod(0o755)
        if real.isolation is Isolation.CONTAINER:
            os.chown(locked, 12345, 12345)
        elif locked.stat().st_uid == real.folders.of(spec.replica_id).app.stat().st_uid:
            pytest.skip("its user is root here")
        with pytest.raises(Refused, match="cannot be written to"):
            await copied_in(real, spec, source, "locked")
        assert list(locked.iterdir()) == []
