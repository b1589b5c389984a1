"""That a replica counts as still only while nothing of it runs."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from nodeagent.shim import activity as stillness
from nodeagent.shim.activity import Stillness
from nodeagent.shim.forked import children_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
THREAD = (
    "import sys, threading\n"
    "def echo():\n"
    "    for line in sys.stdin: print(line, end='', flush=True)\n"
    "one = threading.Thread(target=echo)\n"
    "one.start()\n"
    "one.join()"
)
CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {ECHO!r}])"


@pytest.fixture(params=[ECHO, THREAD, CHILD], ids=["itself", "a thread", "a child"])
def program(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", request.param]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        yield started
        started.stdin.close()


def below(program: subprocess.Popen[bytes]) -> Stillness:
    return Stillness(lambda: [program.pid, *children_of(program.pid)])


def until_still(watched: Stillness) -> None:
    ends_at = time.monotonic() + 60
    while not watched.look():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def say(program: subprocess.Popen[bytes]) -> None:
    program.stdin.write(b"word\n")
    program.stdin.flush()
    assert program.stdout.readline() == b"word\n"


def test_what_waits_is_still_and_is_not_when_any_of_it_has_run(
    program: subprocess.Popen[bytes],
) -> None:
    say(program)
    watched = below(program)
    assert not watched.look()
    until_still(watched)
    say(program)
    assert not watched.look()
    until_still(watched)


def test_one_listing_is_no_proof(program: subprocess.Popen[bytes]) -> None:
    """It may have missed one that forked meanwhile."""
    say(program)
    watched = below(program)
    until_still(watched)
    watched.end()
    assert [watched.look() for _ in range(3)] == [False, False, True]


def test_what_was_not_listed_is_found_out_of_a_listing(program: subprocess.Popen[bytes]) -> None:
    listings: list[list[int]] = []

    def missing_one() -> list[int]:
        found = [program.pid, *children_of(program.pid)]
        listings.append(found[:-1] if len(listings) == 1 else found)
        return listings[-1]

    say(program)
    until_still(below(program))
    watched = Stillness(missing_one)
    # two that differ; only the third and the fourth agree
    assert [watched.look() for _ in range(5)] == [False, False, False, False, True]


def test_clocks_are_not_believed_for_ever(
    program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(program)
    watched = below(program)
    until_still(watched)
    monkeypatch.setattr(stillness, "_LONGEST_S", 0.0)
    assert not watched.look()


def test_nothing_is_not_still() -> None:
    watched = Stillness(list)
    assert not any(watched.look() for _ in range(4))


def test_what_has_gone_is_not_still() -> None:
    with subprocess.Popen(["sleep", "60"]) as program:
        watched = Stillness(lambda: [program.pid])
        until_still(watched)
        program.kill()
        program.wait()
        assert not any(watched.look() for _ in range(4))
