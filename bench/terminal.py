"""A program in a terminal of its own: what it shows, when that came, and what is typed to it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import queue
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import psutil
import pyte

WITHIN_S: Final = 60.0
"""How long is waited for a screen."""
_STILL_S: Final = 0.005
"""So long nothing more has come: what there was is looked at."""
_PIECE: Final = 1 << 16
_TURN_S: Final = 0.0005
"""How long the reader waits at most for its turn while what came before is taken in."""


class Terminal:
    """Runs a program in a pty.

    Args:
        command: what runs.
        environment: all of its variables.
        columns, lines: the size in cells.

    Attributes:
        received: bytes that it wrote, so far.
        received_at: when the last of them came, by `time.perf_counter`.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        columns: int = 120,
        lines: int = 40,
    ) -> None:
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.Stream(self._screen)
        # A character may come in two pieces.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._master, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.received = 0
        self.began = self.received_at = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=other,
            stdout=other,
            stderr=other,
            env=dict(environment),
            start_new_session=True,
        )
        os.close(other)
        self._pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        sys.setswitchinterval(_TURN_S)
        self._reader = threading.Thread(target=self._read, name="terminal")
        self._reader.start()
        self.process = psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        os.close(self._master)

    def receive(self, seconds: float) -> bool:
        """Take in what comes within so long, no longer than to the first of it; whether anything did."""
        try:
            received_at, piece = self._pieces.get(timeout=max(seconds, 0))
        except queue.Empty:
            return False
        if not piece:
            raise AssertionError(f"it ended:\n{self.text()}")
        self.received_at = received_at
        self.received += len(piece)
        self._stream.feed(self._decoder.decode(piece))
        return True

    def _read(self) -> None:
        """Take what comes out of the pty at the moment at which it comes, whoever is still busy with what came before."""
        piece = b"some"
        while piece:
            try:
                piece = os.read(self._master, _PIECE)
            except OSError:  # so a pty says that its program has ended
                piece = b""
            self._pieces.put((time.perf_counter(), piece))

    def receive_for(self, seconds: float) -> None:
        """Take in all that comes for so long."""
        ends_at = time.perf_counter() + seconds
        while (left := ends_at - time.perf_counter()) > 0:
            self.receive(left)

    def until(self, holds: Callable[[], bool]) -> float:
        """When the bytes came after which this holds, by `time.perf_counter`; no answer in WITHIN_S raises."""
        ends_at = time.perf_counter() + WITHIN_S
        while not holds():
            if time.perf_counter() > ends_at:
                raise AssertionError(f"not shown in {WITHIN_S:g} s:\n{self.text()}")
            self.receive(0.1)
        return self.received_at

    def type(self, keys: str) -> float:
        """Press keys; when that was."""
        now = time.perf_counter()
        os.write(self._master, keys.encode())
        return now

    def answer_ms(self, keys: str, holds: Callable[[], bool]) -> float:
        """From pressing keys until what comes back makes this hold."""
        pressed = self.type(keys)
        return 1000 * (self.until(holds) - pressed)

    def settle(self) -> None:
        """Take in what has come already."""
        while self.receive(_STILL_S):
            pass

    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(map(self.line, range(self._screen.lines)))

    def line(self, number: int) -> str:
        """A line of it, from 0 on."""
        cells = self._screen.buffer[number]
        return "".join(cells[column].data for column in range(self._screen.columns))

    def background(self, line: int, column: int) -> str:
        """The colour behind a cell."""
        return str(self._screen.buffer[line][column].bg)
