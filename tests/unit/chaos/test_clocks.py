"""The wall clock of a program is set while it runs, and nothing else of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.clocks import Clocks
from chaos.processes import NotDone
from tests.clock.library import require_clock

PROGRAM = """
import datetime, sys, threading, time
import grpc
call = grpc.insecure_channel("unix:/nobody/listens").unary_unary("/a/b")
for line in sys.stdin:
    began = time.monotonic()
    threading.Event().wait(0.01)
    try:
        call(b"", timeout=0.02, wait_for_ready=True)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, error
    waited = time.monotonic() - began
    print(time.time(), datetime.datetime.now().timestamp(), time.monotonic(), waited, flush=True)
"""


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    return Clocks(require_clock(), tmp_path)


@pytest.fixture
def program(clocks: Clocks) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, **clocks.environment("cp1")}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        yield running


def read(program: subprocess.Popen[str]) -> list[float]:
    assert program.stdin
    assert program.stdout
    program.stdin.write("\n")
    program.stdin.flush()
    return [float(word) for word in program.stdout.readline().split()]


def test_a_clock_is_set_while_its_program_runs(
    clocks: Clocks, program: subprocess.Popen[str]
) -> None:
    for ahead_s in (0.0, 7200.0, -7200.0, 3.5, 0.0):
        clocks.set("cp1", ahead_s)
        before, steady_before = time.time() + ahead_s, time.monotonic()
        wall, date, steady, waited = read(program)
        after, steady_after = time.time() + ahead_s, time.monotonic()
        assert before <= wall <= after
        assert before - 1e-3 <= date <= after
        assert steady_before <= steady <= steady_after
        # A deadline by the wall clock is reached when it should be, not hours later, or at once.
        assert 0.03 <= waited <= steady_after - steady_before


def test_a_clock_that_cannot_be_set(clocks: Clocks) -> None:
    assert Clocks().environment("cp1") == {}
    with pytest.raises(NotDone, match="cp1"):
        clocks.set("cp1", 1.0)
