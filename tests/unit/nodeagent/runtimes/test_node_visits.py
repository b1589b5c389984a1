"""Programs that are started on the node itself: what reaches them of the agent, and that nothing of them outlives it."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeagent.runtimes.node_visits import NodeVisits
from nodeagent.runtimes.visits import NotStarted, Visit, VisitOrder
from tests.contract.test_runtime_contract import soon, until
from tests.contract.test_runtime_visits import all_of, first_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

VISITS = NodeVisits("gpu-7", grace_s=0.5)
SECONDS = 200_000 + os.getpid()
"""How long this process's sleepers sleep."""
DETACHED = "(setsid nohup sh -c 'trap \"\" HUP TERM; sleep {0}; :' >/dev/null 2>&1 &)"
"""In the background, in a session of its own, and deaf to all but SIGKILL."""


@pytest.fixture
async def sleep() -> AsyncIterator[str]:
    """Seconds that only this test's sleepers sleep."""
    global SECONDS  # noqa: PLW0603
    SECONDS += 1
    seconds = str(SECONDS)
    yield seconds
    await until(lambda: not sleepers(seconds))


@pytest.fixture(autouse=True)
async def no_visitor_stays() -> AsyncIterator[None]:
    """Each is gone, and reaped."""
    yield
    await until(lambda: not visitors())


def sleepers(seconds: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                    found.append(int(entry.name))
    return found


@asynccontextmanager
async def visiting(
    *argv: str, terminal: tuple[int, int] | None = None, **environment: str
) -> AsyncIterator[Visit]:
    order = VisitOrder(argv=argv, environment=environment, terminal=terminal)
    async with VISITS.started(order) as visit:
        yield visit


async def said(*argv: str, given: bytes = b"") -> tuple[bytes, bytes, int | None, int | None]:
    async with visiting(*argv) as visit:
        await visit.write(given)
        await visit.close_input()
        (out, err), end = await asyncio.gather(all_of(visit), soon(visit.ended()))
        return out, err, *end


async def test_streams_and_exit_codes_are_the_programs() -> None:
    script = "cat; echo err >&2; exit 7"
    assert await said("sh", "-c", script, given=b"in\n") == (b"in\n", b"err\n", 7, None)
    assert await said("sh", "-c", "kill -9 $$") == (b"", b"", None, signal.SIGKILL)


async def test_what_cannot_be_started_says_why() -> None:
    for argv, code in ((("no-such-program",), 127), (("/etc/passwd",), 126)):
        with pytest.raises(NotStarted, match=argv[0]) as refused:
            await said(*argv)
        assert refused.value.exit_code == code


async def test_nothing_of_the_agent_reaches_it_but_its_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NSML_AGENT_TOKEN_FILE", "NSML_TOKEN", "LISTEN_FDS", "LD_PRELOAD_", "PYTHONPATH"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("PATH", f"/nowhere:{os.environ['PATH']}")
    account = pwd.getpwuid(os.geteuid())
    read, write = os.pipe()
    os.set_inheritable(read, True)
    os.set_inheritable(write, True)
    script = "tr '\\0' '\\n' < /proc/self/environ; echo --; ls /proc/self/fd; echo --; id -u; pwd"
    async with visiting("sh", "-c", script, TERM="dumb") as visit:
        await visit.close_input()
        out, err = await all_of(visit)
    os.close(read)
    os.close(write)
    environment, descriptors, rest = out.decode().split("--\n")
    assert err == b""
    assert {one.partition("=")[0] for one in environment.split()} <= {
        *("PATH", "HOME", "USER", "LOGNAME", "TERM"),
        *("PWD", "SHLVL", "_", "OLDPWD"),  # the shell's own
    }
    assert "secret" not in environment
    assert "nowhere" not in environment
    assert f"HOME={account.pw_dir}\n" in environment
    assert descriptors.split() == ["0", "1", "2", "3"]  # the last is the folder that ls lists
    assert rest.split() == [str(os.geteuid()), account.pw_dir]


async def test_signals_that_the_agent_ignores_are_the_programs() -> None:
    script = "grep -E '^Sig(Ign|Blk)' /proc/self/status"
    out, _, _, _ = await said("sh", "-c", script)
    # make has its children ignore two that are the C library's own
    known = sum(1 << (number - 1) for number in signal.valid_signals())
    assert [int(line.split()[1], 16) & known for line in out.decode().splitlines()] == [0, 0]


async def test_a_shell_has_a_terminal_of_its_own_and_job_control() -> None:
    async with visiting(terminal=(31, 117), TERM="dumb") as visit:
        await visit.resize(33, 118)
        await visit.write(b"stty size; tty; set -o | grep monitor; sleep 1 & jobs; exit 5\n")
        (shown, _), end = await asyncio.gather(all_of(visit), soon(visit.ended()))
    assert end == (5, None)
    for words in (b"33 118", b"/dev/pts/", b"on", b"[1]"):
        assert words in shown


async def test_who_hangs_up_ends_it(sleep: str) -> None:
    async with visiting("sleep", sleep):
        await until(lambda: bool(sleepers(sleep)))
    await until(lambda: not sleepers(sleep))


async def test_what_is_halted_or_reads_nothing_ends_too(sleep: str) -> None:
    async with visiting("sh", "-c", f"echo on; kill -STOP $$; sleep {sleep}") as visit:
        assert await first_of(visit) == b"on\n"
    async with visiting("sleep", sleep) as visit:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(visit.write(bytes(1 << 20)), 0.2)
    await until(lambda: not sleepers(sleep))


async def test_what_ignores_the_hangup_is_killed_and_what_it_detached(sleep: str) -> None:
    script = f"{DETACHED.format(sleep)}; trap '' HUP TERM; echo on; sleep {sleep}; :"
    async with visiting("sh", "-c", script) as visit:
        assert await first_of(visit) == b"on\n"
        await until(lambda: len(sleepers(sleep)) == 2)
    await until(lambda: not sleepers(sleep))


async def test_what_it_leaves_in_the_background_ends_with_it(sleep: str) -> None:
    script = f"{DETACHED.format(sleep)}; echo begun"
    assert await said("sh", "-c", script) == (b"begun\n", b"", 0, None)
    await until(lambda: not sleepers(sleep))


async def test_what_forks_without_end_ends(sleep: str) -> None:
    script = f"f() {{ setsid sh -c 'trap \"\" HUP; while :; do sh -c :; done' & }}; f; f; f; echo on; sleep {sleep}"
    async with visiting("sh", "-c", script) as visit:
        assert await first_of(visit) == b"on\n"


async def test_a_shell_of_days_leaves_no_zombies() -> None:
    script = "for n in 1 2 3 4 5 6 7 8; do (sh -c 'sleep 0.1 &' &); done; echo on; read word"
    async with visiting("sh", "-c", script) as visit:
        assert await first_of(visit) == b"on\n"
        [visitor] = visitors()
        await until(lambda: len(children_of(visitor)) == 1)


async def test_signals_reach_its_group() -> None:
    async with visiting("sh", "-c", "trap 'echo got; exit 3' USR1; echo on; read word") as visit:
        assert await first_of(visit) == b"on\n"
        await visit.signal(signal.SIGUSR1)
        (out, _), end = await asyncio.gather(all_of(visit), soon(visit.ended()))
        assert (out, end) == (b"got\n", (3, None))


async def test_a_visitor_that_is_killed_takes_the_program_with_it(sleep: str) -> None:
    async with visiting("sleep", sleep) as visit:
        await until(lambda: bool(sleepers(sleep)))
        [visitor] = visitors()
        os.kill(visitor, signal.SIGKILL)
        assert await soon(visit.ended()) == (None, None)
        await until(lambda: not sleepers(sleep))


AGENT = """
import asyncio, sys
from nodeagent.runtimes.node_visits import NodeVisits
from nodeagent.runtimes.visits import VisitOrder

async def main():
    order = VisitOrder(argv=("sh", "-c", sys.argv[1]), environment={}, terminal=None)
    async with NodeVisits("gpu-7", grace_s=0.5).started(order) as visit:
        print(await anext(visit.sources[0]), flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.variant)]
)
async def test_nothing_outlives_the_agent(sleep: str, number: signal.Signals) -> None:
    script = f"{DETACHED.format(sleep)}; trap '' HUP TERM; echo on; sleep {sleep}; :"
    with subprocess.Popen(  # noqa: ASYNC220 - it is gone when this returns
        [sys.executable, "-c", AGENT, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as agent:
        assert agent.stdout is not None
        assert b"on" in await asyncio.to_thread(agent.stdout.readline)
        await until(lambda: len(sleepers(sleep)) == 2)
        agent.send_signal(number)
    await until(lambda: not sleepers(sleep))


async def test_many_at_once_leave_no_descriptors() -> None:
    await said("true")
    await until(lambda: not visitors())
    before = descriptors()
    done = await asyncio.gather(*(said("cat", given=b"%d" % n) for n in range(20)))
    assert [out for out, *_ in done] == [b"%d" % n for n in range(20)]
    await until(lambda: descriptors() <= before)  # what tests before this one left open may go


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def visitors() -> list[int]:
    """Visitors that this process has started, also those that it has not reaped."""
    found = []
    for pid in children_of(os.getpid()):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_bytes() == b"nsml-visitor\n":
                found.append(pid)
    return found


def children_of(parent: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{parent}/task").iterdir():
        with suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found
