"""What a visitor looks up of the program that it visits is that program's own."""

from __future__ import annotations

import os
import signal

import pytest

from nodeagent.shim.visitor import Process


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
