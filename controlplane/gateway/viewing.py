"""The program of one view: writes event files as sessions report, and has TensorBoard show them.

It is a client like any other: it reads with its user's own credential, which is judged at the control
plane's door with every message, and ends when it is refused. Its order comes on standard input, a line
of JSON, so that no command line and no environment shows it; the end of that input is the program's end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
import threading
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tensorboard import program
from werkzeug.serving import make_server

from nsml.client.calls import Client
from nsml.client.connect import open_channel
from nsml.client.contexts import Context
from nsml.client.errors import ClientError, TooLarge
from nsml.client.streams import read_metrics
from nsml.client.ways import Ways
from nsml.concurrency import TaskGroup
from nsml.event_files import LiveEventFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_BYTES: Final = 512 << 20
"""Of event files of one view: some seven million points."""
RELOAD_EVERY_S: Final = 2
_NICE: Final = 5


def main() -> NoReturn:
    """Serve until standard input ends, or a session is not to be read any more (exit code 1)."""
    # What libraries print goes to the log: the other end waits for one line.
    told = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    order = json.loads(sys.stdin.buffer.readline())
    folder = Path(order["folder"])
    threading.Thread(target=_end_with_input, args=(folder,), daemon=True).start()
    os.nice(_NICE)
    (folder / "runs").mkdir()
    board(folder, order["prefix"])
    os.write(told, b"ready\n")
    try:
        asyncio.run(_follow(order, folder / "runs"))
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


def board(folder: Path, prefix: str) -> None:
    """Start TensorBoard in threads of this process, on the Unix socket `http` of the folder."""

    class OnSocket(program.TensorBoardServer):  # type: ignore[misc]
        """No port: every user of the machine could call that."""

        def __init__(self, wsgi_app: Any, flags: Any) -> None:
            del flags
            self._server = make_server(f"unix://{folder / 'http'}", 0, wsgi_app, threaded=True)

        def serve_forever(self) -> None:
            self._server.serve_forever()

        def get_url(self) -> str:
            return prefix

    made = program.TensorBoard(server_class=OnSocket)
    made.configure(
        argv=(
            "tensorboard",
            f"--logdir={folder / 'runs'}",
            f"--path_prefix={prefix}",
            "--load_fast=false",  # no further process
            f"--reload_interval={RELOAD_EVERY_S}",
            "--window_title=nsml",
        )
    )
    made.launch()


async def _follow(order: Mapping[str, Any], runs: Path) -> None:
    context = Context(name="view", server=order["server"])
    ways = Ways(lambda server: open_channel(context, server), context.servers)
    client = Client(ways, token=order["token"])
    written: list[LiveEventFiles] = []
    try:
        async with TaskGroup() as group:
            for session_id in order["sessions"]:
                group.create_task(_write(client, session_id, runs, written))
    finally:
        await ways.close()


async def _write(
    client: Client, session_id: str, runs: Path, written: list[LiveEventFiles]
) -> None:
    """Write what a session reported, and go on as it reports, until it has ended."""
    files = LiveEventFiles(await client.sessions.get(session_id), runs)
    written.append(files)
    async with aclosing(read_metrics(client, session_id, follow=True)) as stream:
        async for answer in stream:
            files.add(answer.points)
            if sum(one.size_bytes for one in written) > MOST_BYTES:
                raise TooLarge(f"more than {MOST_BYTES >> 20} MiB of event files")
            await asyncio.sleep(0)


if __name__ == "__main__":
    main()
