"""The dashboard of one user behind a gateway: the page, on a Unix socket in a private folder.

The process that starts it decides who reaches that socket. The order comes on stdin, a line of JSON, so
that no command line and no environment shows it; the program ends when stdin ends:

    folder    of the socket, `http`
    prefix    of all paths of the page
    server    of the platform
    token     the user's own credential: the dashboard has the user's rights
    platform  its name
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Final

from tui.web.page import make_app
from tui.web.serving import PageServer
from tui.web.visits import Visits

MOST_MEMORY: Final = 1 << 30
"""Per process."""
_NICE: Final = 5
_TOLD: Final = ("server", "token", "platform")


def main() -> None:
    """Serve until stdin ends."""
    # Output of libraries goes to the log: the other end waits for one line.
    told = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    folder = Path(order["folder"])
    threading.Thread(target=_end_with_input, args=(folder,), daemon=True).start()
    # For its visits, too: they are its children.
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    visits = Visits((), {name: order[name] for name in _TOLD}, os.environ)
    app = make_app(visits, prefix=order["prefix"], hosts=None)
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(folder / "http"))
        taken.listen()
        os.write(told, b"ready\n")
        os.close(told)
        PageServer(app, visits).run(sockets=[taken])


def _end_with_input(folder: Path) -> None:
    """Exit when the parent process closes our stdin, or dies."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
