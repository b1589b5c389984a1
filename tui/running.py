"""Runs a command of `nsml` on its own terminal, and passes on its output, made safe."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import pty
import shutil
import signal
import struct
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsml.view.terminal_output import ShownLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsml.view.terminal_output import Printed

PIECE: Final = 65_536
HIGH: Final = 200
"""Height of that terminal in lines: output is scrolled, not paged."""


def program() -> str | None:
    """Return this installation's `nsml`, else that on the search path; None: there is none."""
    beside = Path(sys.executable).with_name("nsml")
    return str(beside) if beside.exists() else shutil.which("nsml")


async def run(
    words: Sequence[str],
    *,
    environ: Mapping[str, str],
    width: int,
    take: Callable[[str, str], None],
) -> int:
    """Run it to its end, and return its exit code; `take` gets output and its unfinished end, with colours.

    It gets no input, and ends if this is cancelled. Raises OSError if it cannot start.
    """
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HIGH, width, 0, 0))
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=slave,
            stderr=slave,
            env={"TERM": "xterm-256color", **environ, "COLUMNS": str(width)},
            start_new_session=True,
        )
    except OSError:
        os.close(master)
        raise
    finally:
        os.close(slave)
    try:
        await _read(master, take)
        return await process.wait()
    finally:
        os.close(master)
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


async def _read(master: int, take: Callable[[str, str], None]) -> None:
    """Pass on all output until the terminal is closed; raises what `take` raises."""
    text = ShownLog(is_safe=True, keeps_colour=True)
    readable = asyncio.Event()
    loop = asyncio.get_running_loop()
    os.set_blocking(master, False)  # a second wake-up for the same bytes finds nothing
    loop.add_reader(master, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            try:
                data = os.read(master, PIECE)
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno != errno.EIO:  # a closed terminal on Linux
                    raise
                break
            if not data:
                break
            take(_joined(text.feed(data)), text.open)
    finally:
        loop.remove_reader(master)
    take(_joined(text.close()), "")


def _joined(done: Sequence[Printed]) -> str:
    return "".join(one.text for one in done)
