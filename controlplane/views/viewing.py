"""The program of one view: reads what sessions report, and has a board show it.

It is a client like any other: it reads with its user's own credential, which is judged at the control
plane's door with every message, and ends when it is refused. Its order comes on standard input, a line
of JSON, so that no command line and no environment shows it; the end of that input is the program's end.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import shutil
import sys
import threading
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from nsml.client.calls import Client
from nsml.client.connect import check_listener, open_channel
from nsml.client.contexts import Context
from nsml.client.endpoints import Endpoints
from nsml.client.errors import ClientError
from nsml.client.streams import read_curves
from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsml.v1.sessions_pb2 import MetricPoint, Session

MOST_MEMORY: Final = 2 << 30
"""Of one view. TensorBoard keeps up to 25 bytes in memory for each of its event files."""
_NICE: Final = 5
_BOARDS: Final = {"tensorboard": ("tensorboards", "TensorBoard"), "visdom": ("visdoms", "Visdom")}
"""Of each kind; its libraries are loaded for itself alone."""


class Board(Protocol):
    """A visualisation server, made of its order; what it answers, and where, is its own."""

    def start(self) -> None:
        """Have it answer."""
        ...

    def add(self, session: Session, points: Sequence[MetricPoint]) -> None:
        """Take what a session reported; raises ClientError where that is too much."""
        ...

    async def show(self) -> None:
        """Show what was added, until cancelled or there is nothing to do for it."""
        ...


def main() -> NoReturn:
    """Serve until standard input ends, or a session is not to be read any more (exit code 1)."""
    # What libraries print goes to the log: the other end waits for one line.
    told = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = json.loads(sys.stdin.buffer.readline())
    order["folder"] = Path(order["folder"])
    threading.Thread(target=_end_with_input, args=(order["folder"],), daemon=True).start()
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.excepthook = _end_without_memory
    module, name = _BOARDS[order["kind"]]
    board: Board = getattr(importlib.import_module(f"controlplane.views.{module}"), name)(order)
    board.start()
    os.write(told, b"ready\n")
    try:
        asyncio.run(_follow(order, board))
    except* ClientError as group:
        print(*group.exceptions, file=sys.stderr)  # noqa: T201 - the log
        os._exit(1)
    threading.Event().wait()
    raise AssertionError


def _end_with_input(folder: Path) -> None:
    """Whoever started us holds the other end, and lets go of it by dying, too."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _end_without_memory(args: threading.ExceptHookArgs) -> None:
    """A board of which one thread has ended would show what is not so any more."""
    threading.__excepthook__(args)
    if isinstance(args.exc_value, MemoryError):
        print(f"it needs more than {MOST_MEMORY >> 30} GiB of memory", file=sys.stderr)  # noqa: T201
        os._exit(1)


async def _follow(order: Mapping[str, Any], board: Board) -> None:
    context = Context(name="view", server=order["server"])
    ways = Endpoints(
        lambda server: open_channel(context, server),
        context.servers,
        lambda server: check_listener(context, server),
    )
    client = Client(ways, token=order["token"])
    try:
        async with TaskGroup() as group:
            group.create_task(board.show())
            for session_id in order["sessions"]:
                group.create_task(_add(client, session_id, board))
    finally:
        await ways.close()


async def _add(client: Client, session_id: str, board: Board) -> None:
    """Give a board what a session reported, and go on as it reports, until it has ended."""
    session = await client.sessions.get(session_id)
    async with aclosing(read_curves(client, session, follow=True)) as stream:
        async for answer in stream:
            board.add(session, answer.points)
            await asyncio.sleep(0)


if __name__ == "__main__":
    main()
