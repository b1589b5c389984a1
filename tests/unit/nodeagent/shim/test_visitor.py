"""Whom a visitor cannot let in, and why it says so."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from nodeagent.shim import file_server
from nodeagent.shim.cgroups import Entrance
from nodeagent.shim.visitor import Process, _Call, _Visit

OF_CONTAINER = {"container": {"config": {"WorkingDir": "/"}}}
COPY = {"argv": [], "env": {}, "terminal": None, "copy": {"path": "x", "sends": True, "name": ""}}
STRANGER = 1_999_999_999


def failure_of(order: dict, *, uid: int) -> str:
    """Why somebody with this uid visits no container whose first process is this one."""
    file_server.prepare()
    first = os.getpid()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            call = _Call(socket.socket(), OF_CONTAINER, Process(first), Entrance())
            call.order = order
            _Visit(call)
        except OSError as error:
            os.write(tell, str(error).encode())
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(told) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.skipif(os.geteuid() != 0, reason="to be another user takes root")
def test_why_no_container_is_entered() -> None:
    assert "agent is not root" in failure_of(COPY, uid=STRANGER)
    assert "control group of its container cannot be seen" in failure_of(COPY, uid=0)
    assert "by its engine" in failure_of({**COPY, "copy": None}, uid=0)


def test_a_number_that_may_be_somebody_elses_is_none() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    process = Process(child)
    process.check()
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with pytest.raises(OSError, match="just beginning or ending"):
        process.check()
    os.waitpid(child, 0)
    process.close()
