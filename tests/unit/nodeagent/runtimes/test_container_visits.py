"""What an engine says of a program that it starts in a container, and how its stream may end."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.runtimes.container_visits import ContainerVisit, shell_argv
from nodeagent.runtimes.visits import Output, VisitOrder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHELL = VisitOrder(argv=("sh",), environment={}, terminal=None)
ENDED = {"Running": False, "Pid": os.getpid(), "ExitCode": 0}


class Writer:
    """The other direction, which nobody uses here."""

    transport = SimpleNamespace(abort=lambda: None)


def visit_of(said: Sequence[dict[str, Any]], stream: bytes) -> ContainerVisit:
    """One whose engine says this in turn, the last for good, and sends this stream."""
    left = list(said)

    def exec_inspect(_: str) -> dict[str, Any]:
        return left.pop(0) if len(left) > 1 else left[0]

    engine: Any = SimpleNamespace(
        socket=Path("/engine"), sdk=SimpleNamespace(api=SimpleNamespace(exec_inspect=exec_inspect))
    )
    reader, writer = asyncio.StreamReader(), Writer()
    reader.feed_data(stream)
    reader.feed_eof()
    made: Any = writer
    return ContainerVisit(engine, "1", reader, made, has_terminal=False)


async def test_an_engine_that_has_not_started_it_yet_is_asked_again() -> None:
    before = {"Running": False, "Pid": 0, "ExitCode": None}
    visit = visit_of([before, before, ENDED], b"\1\0\0\0\0\0\0\2ab")
    async with asyncio.timeout(60):
        await visit.begin(SHELL)
        assert [one async for one in visit.sources[0]] == [(Output.STANDARD, b"ab")]
        assert await visit.ended() == (0, None)
    await visit.close()


@pytest.mark.parametrize("stream", [b"\1\0\0", b"\1\0\0\0\0\0\0\3ab"], ids=["head", "piece"])
async def test_a_stream_that_breaks_is_no_good_end(stream: bytes) -> None:
    visit = visit_of([ENDED], stream)
    async with asyncio.timeout(60):
        await visit.begin(SHELL)
        assert [one async for one in visit.sources[0]] in ([], [(Output.STANDARD, b"ab")])
        assert await visit.ended() == (None, None)
    await visit.close()


@pytest.fixture
def ended() -> Iterator[int]:
    """A process that has ended, by a descriptor whose number is more than select() can count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    child = os.fork()
    if child == 0:
        os._exit(0)
    first = os.pidfd_open(child)
    yield fcntl.fcntl(first, fcntl.F_DUPFD, 1_500)
    os.close(first)
    os.waitpid(child, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_an_agent_with_many_files_open_reads_what_an_ended_program_wrote(
    ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = b"\1\0\0\0\0\4\0\0" + b"x" * (256 << 10)
    visit = visit_of([ENDED], piece * 8)
    monkeypatch.setattr(visit, "_process", ended)
    async with asyncio.timeout(60):
        while not visit._is_read:
            await visit._changed.wait()
        assert sum([len(data) async for _, data in visit.sources[0]]) == 8 * (256 << 10)
    await visit.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a pid namespace")
@pytest.mark.parametrize("soft", [64, 128])
def test_a_program_that_enters_has_as_many_files_as_the_first(soft: int) -> None:
    first = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c"]
    entered = 'ulimit -S -n "$1"; shift; (ulimit -S -n 256; "$@"); exit'
    argv = [*first, entered, "first", str(soft), *shell_argv("ulimit -n")]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{soft}\n", "")
