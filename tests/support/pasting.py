"""A person's shell on a terminal of 80 columns, into which lines of documents are pasted one by one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_PROMPT = re.compile(r"@@(\d+)@@ \Z")
_ENDS = re.compile(rf"{_PROMPT.pattern}|\[y/N\] \Z")
_SEQUENCES = re.compile(
    r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_()][0-9A-B]?)"
)
WITHIN_S = 60.0


class Shell:
    """An interactive bash in a pty of 80 columns and 24 lines.

    Args:
        folder: where it begins.
        environment: all of its variables.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._master, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._process = subprocess.Popen(
            ["/bin/bash", "--norc", "--noprofile", "-i"],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=folder,
            env={**environment, "PS1": "@@$?@@ ", "TERM": "xterm-256color", "HISTFILE": ""},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - as terminals do
        )
        os.close(other)
        self._until(_PROMPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.killpg(self._process.pid, signal.SIGHUP)
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def paste(self, line: str, *, awaits: str = "", keys: str = "") -> tuple[int, str]:
        """The exit code of a line, and what it wrote; `keys` are typed once it has written `awaits`.

        What asks for a confirmation gets it.
        """
        self._type(f"{line}\n")
        before = ""
        if keys:
            before = self._until(
                re.compile("\n.*" + re.escape(awaits), re.DOTALL)
            )  # not in the echo
            self._type(keys)
        written = before + self._until(_ENDS)
        while not _PROMPT.search(written):
            self._type("y\n")
            written += self._until(_ENDS)
        code = _PROMPT.search(written)
        assert code is not None
        return int(code[1]), written[: code.start()].partition("\n")[2]

    def _type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _until(self, wanted: re.Pattern[str]) -> str:
        """What is written up to what is wanted, as plain text."""
        held, give_up_at = b"", time.monotonic() + WITHIN_S
        while True:
            text = _SEQUENCES.sub("", held.decode(errors="replace")).replace("\r\n", "\n")
            if wanted.search(text):
                return text
            if not select.select([self._master], [], [], max(give_up_at - time.monotonic(), 0))[0]:
                raise AssertionError(
                    f"no {wanted.pattern!r} within {WITHIN_S:g} s in:\n{text[-2000:]}"
                )
            held += os.read(self._master, 1 << 16)
