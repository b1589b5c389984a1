"""Work on content of any size, in a child process with limits of memory and time.

No content may block the other calls of the control plane, or leave a gigabyte in its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Final

from nsml.content.errors import ContentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Sequence

MEMORY_BYTES: Final = 1 << 30
"""Address space: an encoding of any size takes some 60 MB of it, the sizes of the most files as much again."""
WITHIN_S: Final = 900.0
"""Timeout: the largest one takes some minutes."""

_NICE: Final = 10
_REFUSED_CODE: Final = 3
_NO_ROOM_CODE: Final = 4


class OverLimit(Exception):
    """The work exceeds its memory or time limit."""


class NoRoom(Exception):
    """Temporary files cannot be written; a retry may succeed."""


async def run_limited(
    module: str, *arguments: str, given: AsyncIterable[bytes], pass_fds: Sequence[int] = ()
) -> bytes:
    """Run a module with a `main` that calls `work_limited`; return the result of the work.

    `given` is fed to its stdin, until it has read enough.

    Raises:
        ContentError: the work raised it.
        OverLimit: a limit was reached.
        NoRoom: temporary files could not be written.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        pass_fds=pass_fds,
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            await _feed(process, given)
            answer, _ = await process.communicate()
    except TimeoutError:
        raise OverLimit(f"that takes longer than {WITHIN_S:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    match process.returncode:
        case 0:
            return answer
        case _ if process.returncode == _REFUSED_CODE:
            raise ContentError(answer.decode())
        case _ if process.returncode == _NO_ROOM_CODE:
            raise NoRoom(no_file(answer.decode()))
    raise OverLimit(f"that takes more than {MEMORY_BYTES >> 30} GiB of memory")


def no_file(why: object) -> str:
    """Return the message for a failed temporary file."""
    words = why.strerror or str(why) if isinstance(why, OSError) else why
    return f"the control plane has no temporary file for it: {words}"


async def _feed(process: asyncio.subprocess.Process, given: AsyncIterable[bytes]) -> None:
    if process.stdin is None:
        raise AssertionError("it was started with a pipe")
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        async for piece in given:
            process.stdin.write(piece)
            await process.stdin.drain()
    process.stdin.close()


def work_limited(work: Callable[[], str]) -> None:
    """Do the work within the limits, write its result to stdout, and exit the process."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the control plane
    code = 0
    try:
        answer = work()
    except ContentError as error:
        code, answer = _REFUSED_CODE, str(error)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise
        code, answer = _NO_ROOM_CODE, error.strerror or str(error)
    sys.stdout.buffer.write(answer.encode("utf-8", "replace"))
    sys.stdout.flush()
    sys.exit(code)
