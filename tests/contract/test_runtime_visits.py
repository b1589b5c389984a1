"""Programs that are started in a replica while it runs: where they are, what they may, and when they end."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pytest

from nodeagent.runtimes.container_visits import ContainerVisits
from nodeagent.runtimes.interface import Isolation
from nodeagent.runtimes.visits import NotAdmitted, NotStarted, Output, Visit, VisitOrder, Visits
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

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nodeagent.runtimes.interface import ReplicaSpec
    from nodeagent.runtimes.isolation import IsolationFacts

__all__ = ["facts", "nothing_left", "tmp_path"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
SLEEP = str(100_000 + os.getpid())
"""Seconds that name this process's sleepers."""
RUNS_ON = "echo ready; while :; do sleep 0.05; done"
_VISITS: WeakKeyDictionary[asyncio.AbstractEventLoop, Visits] = WeakKeyDictionary()


def visits() -> Visits:
    """Those of the running test: each has a loop of its own."""
    return _VISITS.setdefault(asyncio.get_running_loop(), Visits(BOOT_ID))


@pytest.fixture(params=[*PROCESS_BENCHES, "docker"])
async def real(
    request: pytest.FixtureRequest, tmp_path: Path, facts: IsolationFacts
) -> AsyncIterator[Bench]:
    async with bench_named(request.param, tmp_path, facts) as made:
        yield made


@asynccontextmanager
async def visiting(
    bench: Bench, spec: ReplicaSpec, *argv: str, terminal: tuple[int, int] | None = None
) -> AsyncIterator[Visit]:
    order = VisitOrder(argv=argv, environment={"TERM": "dumb"}, terminal=terminal)
    folder = bench.folders.of(spec.replica_id)
    plan = json.loads(folder.spec.read_bytes()).get("container")
    made = (
        ContainerVisits(Path(plan["socket"])).started(plan["name"], order)
        if plan
        else visits().started(folder, order)
    )
    async with made as visit:
        yield visit


async def all_of(visit: Visit) -> tuple[bytes, bytes]:
    """What it writes, to its end."""
    found = {Output.STANDARD: b"", Output.ERRORS: b""}

    async def read(source: AsyncIterator[tuple[Output, bytes]]) -> None:
        async for kind, data in source:
            found[kind] += data

    await soon(asyncio.gather(*map(read, visit.sources)))
    return found[Output.STANDARD], found[Output.ERRORS]


async def first_of(visit: Visit) -> bytes:
    _, data = await soon(anext(visit.sources[0]))
    return data


@asynccontextmanager
async def running(bench: Bench, text: str = RUNS_ON, **spec: object) -> AsyncIterator[ReplicaSpec]:
    async with bench.new_driver() as driver:
        made = bench.sh(text, **spec)
        await driver.start(made)
        await bench.ready(made)
        try:
            yield made
        finally:
            await driver.stop(made.replica_id, grace_s=0.0, reason="over")
            await soon(driver.wait(made.replica_id))


async def said(
    bench: Bench, spec: ReplicaSpec, *argv: str, given: bytes = b""
) -> tuple[bytes, bytes, int | None, int | None]:
    async with visiting(bench, spec, *argv) as visit:
        if given:
            await visit.write(given)
        await visit.close_input()
        (out, err), (code, number) = await asyncio.gather(all_of(visit), soon(visit.ended()))
        return out, err, code, number


async def test_streams_and_exit_code_come_apart(real: Bench) -> None:
    async with running(real) as spec:
        script = "cat; echo err >&2; exit 7"
        assert await said(real, spec, "sh", "-c", script, given=b"in\n") == (
            b"in\n",
            b"err\n",
            7,
            None,
        )
        assert await said(real, spec, "sh", "-c", "kill -9 $$") == (b"", b"", None, 9)


async def test_it_is_where_the_program_is(real: Bench) -> None:
    # runc sets the soft limit while its own start may still raise it (opencontainers/runc#4195)
    files = "-Hn" if real.isolation is Isolation.CONTAINER else "-n"
    script = (
        "for n in user mnt pid ipc cgroup net; do readlink /proc/self/ns/$n; done; id -u; pwd; "
        f"grep -E '^(Cap|NoNew|Seccomp)' /proc/self/status; ulimit {files}; ulimit -c; "
        "cut -d: -f3 /proc/self/cgroup; env | grep -v -E '^(_|SHLVL|PWD|OLDPWD|TERM)=' | sort"
    )
    async with running(real, f"{{ {script}; }} > $NSML_RUN_DIR/is; {RUNS_ON}") as spec:
        out, err, code, _ = await said(real, spec, "sh", "-c", script)
        assert (code, err) == (0, b"")
        program = (real.folders.of(spec.replica_id).run / "is").read_bytes()
        assert out.decode() == program.decode()


async def test_a_terminal_is_the_programs_own(real: Bench) -> None:
    async with running(real) as spec, visiting(real, spec, terminal=(31, 117)) as visit:
        await visit.resize(33, 118)
        await visit.write(b"stty size; tty; exit 5\n")
        (shown, _), end = await asyncio.gather(all_of(visit), soon(visit.ended()))
        assert end == (5, None)
    assert b"33 118" in shown
    assert b"/dev/pts/" in shown


async def test_what_it_starts_ends_with_the_replica(real: Bench, tmp_path: Path) -> None:
    async with running(real) as spec:
        async with visiting(
            real, spec, "sh", "-c", f"(setsid nohup sleep {SLEEP} >/dev/null 2>&1 &); echo done"
        ) as visit:
            assert await first_of(visit) == b"done\n"
            await until(lambda: len(sleepers()) == 1)
        stays = visiting(real, spec, "sh", "-c", f"trap '' HUP TERM; echo on; sleep {SLEEP}")
        async with stays as first:
            assert await first_of(first) == b"on\n"
            await until(lambda: len(sleepers()) == 2)
            async with real.new_driver() as driver:
                await driver.stop(spec.replica_id, grace_s=0.0, reason="over")
                await soon(driver.wait(spec.replica_id))
            assert not sleepers()
            assert await soon(first.ended()) == (None, None)


def sleepers() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes() == f"sleep\0{SLEEP}\0".encode():
                    found.append(entry.name)
            except OSError:
                continue
    return found


async def test_who_hangs_up_ends_what_listens_to_that(real: Bench) -> None:
    async with running(real) as spec:
        async with visiting(real, spec, "sleep", SLEEP):
            await until(lambda: len(sleepers()) == 1)
        await until(lambda: not sleepers())


async def test_who_leaves_while_it_begins_ends_it(tmp_path: Path, facts: IsolationFacts) -> None:
    async with bench_named("docker", tmp_path, facts) as docker, running(docker) as spec:

        async def stay() -> None:
            async with visiting(docker, spec, "sleep", SLEEP):
                await asyncio.Event().wait()

        for _ in range(5):
            staying = asyncio.create_task(stay())
            await until(lambda: len(sleepers()) == 1)  # mostly before its engine has said so
            staying.cancel()
            await until(lambda: not sleepers())


async def test_what_is_halted_hears_that_its_client_left(real: Bench) -> None:
    async with running(real) as spec:
        async with visiting(real, spec, "sleep", SLEEP) as visit:
            await until(lambda: len(sleepers()) == 1)
            await visit.signal(19)
            await until(lambda: "T" in Path(f"/proc/{sleepers()[0]}/stat").read_text().split()[2])
        await until(lambda: not sleepers())


async def test_signals_reach_its_group(real: Bench) -> None:
    async with running(real) as spec, visiting(real, spec, "sleep", SLEEP) as visit:
        await until(lambda: len(sleepers()) == 1)
        await visit.signal(15)
        _, end = await asyncio.gather(all_of(visit), soon(visit.ended()))
        assert end == (None, 15)


async def test_a_hangup_that_is_sent_is_no_leaving(real: Bench) -> None:
    script = (
        "exec 2>/dev/null; trap 'echo hup' HUP; trap 'echo term; exit 5' TERM; "
        "echo on; while :; do sleep 0.1; done"
    )
    async with running(real) as spec, visiting(real, spec, "sh", "-c", script) as visit:
        output = visit.sources[0]
        _, data = await soon(anext(output))
        assert data == b"on\n"
        for number, says in ((1, b"hup\n"), (1, b"hup\n"), (15, b"term\n")):
            await visit.signal(number)
            _, data = await soon(anext(output))
            assert data == says
        assert await soon(visit.ended()) == (5, None)


async def test_its_streams_are_three_and_its_own(real: Bench) -> None:
    script = (
        "cat /dev/stdin > /dev/stdout; echo err > /dev/stderr; "
        "for f in 3 4 5 6 7 8 9 10 11 12; do [ ! -e /proc/$$/fd/$f ] || echo $f is open; done"
    )
    async with running(real) as spec:
        found = await said(real, spec, "sh", "-c", script, given=b"in\n")
    assert found == (b"in\n", b"err\n", 0, None)


async def test_long_arguments_arrive(real: Bench) -> None:
    words = ("x" * 120_000, "\u00fc" * 60_000)
    async with running(real) as spec:
        found = await said(real, spec, "sh", "-c", 'echo "${#1}"; echo "$2"', "sh", *words)
    assert found == (f"120000\n{words[1]}\n".encode(), b"", 0, None)


async def test_what_cannot_be_started_says_why(real: Bench) -> None:
    async with running(real) as spec:
        for program, code in (("no-such", 127), ("/etc/passwd", 126)):
            with pytest.raises(NotStarted, match=f"cannot start '{program}'") as caught:
                async with visiting(real, spec, program):
                    pass
            assert caught.value.exit_code == code


async def test_many_at_once(real: Bench) -> None:
    async with running(real) as spec:

        async def one(number: int) -> bytes:
            async with visiting(real, spec, "echo", str(number)) as visit:
                out, _ = await asyncio.gather(all_of(visit), soon(visit.ended()))
                return out[0]

        found = await asyncio.gather(*map(one, range(20)))
        assert found == [b"%d\n" % number for number in range(20)]


async def test_after_its_end_nobody_is_let_in(real: Bench) -> None:
    async with running(real) as spec:
        pass
    with pytest.raises(NotAdmitted, match="does not run"):
        async with visiting(real, spec, "true"):
            pass


async def test_what_it_leaves_in_the_background_holds_its_end_up_for_a_moment_alone(
    real: Bench,
) -> None:
    async with running(real) as spec:
        script = f"sleep {SLEEP} & echo done; exit 3"
        assert await said(real, spec, "sh", "-c", script) == (b"done\n", b"", 3, None)


async def test_all_that_it_writes_comes_before_its_end(real: Bench) -> None:
    async with running(real) as spec:
        out, _, code, _ = await said(real, spec, "sh", "-c", "seq 1 200000")
        assert code == 0
        assert out == b"".join(b"%d\n" % n for n in range(1, 200001))


async def test_the_user_has_a_name(real: Bench) -> None:
    async with running(real) as spec:
        out, _, _, _ = await said(real, spec, "sh", "-c", "id -un; id -u")
        name, uid = out.decode().split()
        assert (name != uid) is (spec.uid is None or real.isolation is Isolation.NAMESPACE)
