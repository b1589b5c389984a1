"""The program of one view: reads sessions' reports, and shows them on a board.

It is a regular client: it reads with its user's own credential, which the control plane checks with every
message, and ends when refused. Its order is a line of JSON on stdin, so that it appears in no command line
and no environment; the program ends when stdin closes.
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
"""Memory limit of one view. TensorBoard keeps up to 25 bytes in memory for each of its event files."""
_NICE: Final = 5
_BOARDS: Final = {"tensorboard": ("tensorboards", "TensorBoard"), "visdom": ("visdoms", "Visdom")}
"""Module and class by kind; only the libraries of the chosen one are loaded."""


class Board(Protocol):
    """A visualisation server, created from its order; it defines its own routes and socket."""

    def start(self) -> None:
        """Start the server."""
        ...

    def add(self, session: Session, points: Sequence[MetricPoint]) -> None:
        """Add points reported by a session; raises ClientError if there are too many."""
        ...

    async def show(self) -> None:
        """Show added points, until cancelled; return if there is nothing to do."""
        ...


def main() -> NoReturn:
    """Serve until stdin closes, or a session may not be read any more (exit code 1)."""
    # Libraries' output goes to the log: the parent waits for one line.
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
    """Exit when the parent closes our stdin, which its death does, too."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _end_without_memory(args: threading.ExceptHookArgs) -> None:
    """Exit if a thread runs out of memory, since the board would then show outdated data."""
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
    """Pass a session's reports to a board, following them until it has ended."""
    session = await client.sessions.get(session_id)
    async with aclosing(read_curves(client, session, follow=True)) as stream:
        async for answer in stream:
            board.add(session, answer.points)
            await asyncio.sleep(0)


if __name__ == "__main__":
    main()
