"""`nsml-tui` as a program, in a terminal of its own."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from nsml.client import contexts
from nsml.client.contexts import Config, Context
from tests.unit.nsml.client.contract_server import TOKEN
from tests.unit.tui.conftest import WITHIN_S

LEFT = b"\x1b[?1049l"
"""The screen of before is back."""


@pytest.mark.parametrize(
    ("how", "code"), [("ctrl-q", 0), ("SIGTERM", 128 + signal.SIGTERM)], ids=["ctrl-q", "SIGTERM"]
)
def test_however_it_ends_the_terminal_is_as_it_was(server, tmp_path, how, code):
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    context = Context(name="test", server=server.address, token_file=str(token))
    contexts.save(Config(str(tmp_path), current="test", contexts={"test": context}))
    here, there = pty.openpty()
    termios.tcsetwinsize(there, (40, 120))
    environment = {**os.environ, "NSML_CONFIG_DIR": str(tmp_path), "TERM": "xterm-256color"}
    program = [sys.executable, "-c", "from tui.main import main; main()"]
    with subprocess.Popen(
        program, stdin=there, stdout=there, stderr=there, env=environment, start_new_session=True
    ) as run:
        os.close(there)
        try:
            seen = read_until(here, b"live")
            if how == "ctrl-q":
                os.write(here, b"\x11")
            else:
                run.send_signal(signal.SIGTERM)
            assert LEFT not in seen
            read_until(here, LEFT)
            assert run.wait(WITHIN_S) == code
        finally:
            run.kill()
            os.close(here)


def read_until(terminal, what):
    ends_at, seen = time.monotonic() + WITHIN_S, b""
    while what not in seen:
        is_more, _, _ = select.select([terminal], [], [], max(ends_at - time.monotonic(), 0))
        assert is_more, seen
        seen += os.read(terminal, 65_536)
    return seen
