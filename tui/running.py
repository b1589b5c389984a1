"""Runs a command of `nsml` on a terminal of its own, and hands on what it writes, made harmless."""

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
"""Lines of that terminal: a result is read by scrolling, and not by pages."""


def program() -> str | None:
    """The program `nsml` of this installation, else that of the search path; None: there is none."""
    beside = Path(sys.executable).with_name("nsml")
    return str(beside) if beside.exists() else shutil.which("nsml")


async def run(
    words: Sequence[str],
    *,
    environ: Mapping[str, str],
    width: int,
    take: Callable[[str, str], None],
) -> int:
    """Run it to its end, and give its exit code; `take` gets what it wrote and what may still change, with colours.

    It reads nothing, and ends where this is cancelled. Raises OSError where it cannot be started.
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
    """Hand on all that is written, until nobody has that terminal any more; raises what `take` raises."""
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
                if error.errno != errno.EIO:  # so ends a terminal on Linux
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
