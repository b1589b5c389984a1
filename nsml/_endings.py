"""Ends the process at once with an exit code, whatever the program does: no handler of its own runs any more."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Optional

_FLUSH_S = 2.0
_exit = os._exit  # before the program can replace it
_ends = threading.Lock()


def end(code: int, why: str = "", error: Optional[BaseException] = None) -> NoReturn:
    """Write an error's traceback and a line to standard error, flush both streams, and exit with `code`.

    `atexit` functions, other threads and `finally` blocks are not waited for. The first of several calls counts.
    """
    if not _ends.acquire(blocking=False):
        while True:  # another thread ends the process
            time.sleep(1)
    try:
        telling = threading.Thread(target=_tell, args=(why, error), daemon=True)
        telling.start()
        telling.join(_FLUSH_S)  # a log that nobody reads must not keep the process
    finally:
        _exit(code)


def _tell(why: str, error: Optional[BaseException]) -> None:
    with suppress(Exception):
        sys.stdout.flush()
    try:
        if error is not None:
            traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
    except BaseException:  # its own methods may do anything
        pass
    with suppress(Exception):
        if why:
            sys.stderr.write(why + "\n")
        sys.stderr.flush()
