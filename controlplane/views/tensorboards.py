"""TensorBoard of one view: event files that grow with sessions' reports, and the server that reads them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from tensorboard import program
from werkzeug.serving import make_server

from nsml.client.errors import TooLarge
from nsml.tensorboard.event_files import LiveEventFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nsml.v1.sessions_pb2 import MetricPoint, Session

MOST_BYTES: Final = 512 << 20
"""Maximum bytes of one view's event files: some seven million points."""
RELOAD_EVERY_S: Final = 2


class TensorBoard:
    """See viewing.Board. Runs in threads of this process, on the Unix socket `http` of the folder."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._folder: Path = order["folder"]
        self._runs = self._folder / "runs"
        self._prefix: str = order["prefix"]
        self._written: dict[str, LiveEventFiles] = {}

    def start(self) -> None:
        """See Board."""
        folder, prefix = self._folder, self._prefix
        self._runs.mkdir()
        logging.getLogger("werkzeug").setLevel(logging.ERROR)

        class OnSocket(program.TensorBoardServer):  # type: ignore[misc]
            """Listens on a socket, since every user of the machine could connect to a port."""

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
                f"--logdir={self._runs}",
                f"--path_prefix={prefix}",
                "--load_fast=false",  # no further process
                f"--reload_interval={RELOAD_EVERY_S}",
                "--window_title=nsml",
            )
        )
        made.launch()

    def add(self, session: Session, points: Sequence[MetricPoint]) -> None:
        """See Board."""
        if session.id not in self._written:
            self._written[session.id] = LiveEventFiles(session, self._runs)
        self._written[session.id].add(points)
        if sum(one.size_bytes for one in self._written.values()) > MOST_BYTES:
            raise TooLarge(f"more than {MOST_BYTES >> 20} MiB of event files")

    async def show(self) -> None:
        """See Board; the server reloads by itself."""
