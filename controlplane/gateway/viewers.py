"""Programs that show sessions, as children of the control plane."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import structlog

from controlplane.domain.errors import StateConflict

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from controlplane.operations.views import Viewer, Wish

START_WITHIN_S: Final = 25.0
"""Less than clients wait for an answer."""
STOP_WITHIN_S: Final = 2.0
_PROGRAM: Final = "controlplane.gateway.viewing"
_MOST_WORDS: Final = 4_000

_log = structlog.get_logger("gateway.viewers")


class TensorBoards:
    """Starts TensorBoard; see operations.views.Viewing.

    Args:
        url: where browsers reach what we answer over HTTP.
        server: where a program of this machine calls the control plane without TLS.
    """

    def __init__(self, *, url: str, server: str) -> None:
        self.url = url
        self._server = server

    async def start(self, wish: Wish) -> Viewer:
        """See Viewing."""
        if importlib.util.find_spec("tensorboard") is None:
            raise StateConflict(
                "TensorBoard is not installed where the control plane runs",
                attempt="there: pip install 'nsml[tensorboard]', or nsml plot SESSION --tensorboard DIR "
                "for one of your own",
            )
        if not self._server:
            raise StateConflict(
                "this control plane has no listener for programs of its own machine",
                attempt="socket or address in its settings",
            )
        folder = Path(tempfile.mkdtemp(prefix="nsml-view-"))
        try:
            return await _Child.started(folder, {**_order(wish), "server": self._server})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _order(wish: Wish) -> dict[str, object]:
    return {"prefix": wish.prefix, "token": wish.token, "sessions": list(wish.session_ids)}


class _Child:
    """A viewer. Its standard input is its life line: it ends when that does, with whoever holds it."""

    def __init__(self, process: Process, folder: Path) -> None:
        self._process = process
        self._folder = folder

    @classmethod
    async def started(cls, folder: Path, order: dict[str, object]) -> Self:
        """Start it, and wait until it answers."""
        own = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        errors = folder / "log"
        with errors.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                _PROGRAM,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=folder,
                # Nothing of ours: the environment may name secrets. Not our terminal's Ctrl-C either.
                env={**own, "HOME": str(folder), "TMPDIR": str(folder)},
                start_new_session=True,
            )
        child = cls(process, folder)
        is_ready = False
        try:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(START_WITHIN_S):
                    is_ready = await child.begun({**order, "folder": str(folder)})
            if not is_ready:
                said = errors.read_text(encoding="utf-8", errors="replace")
        except BaseException:
            await child.stop()
            raise
        if not is_ready:
            await child.stop()
            raise _not_started(said[-_MOST_WORDS:])
        return child

    async def begun(self, order: dict[str, object]) -> bool:
        """Give it its order; whether it says that it answers."""
        assert self._process.stdin is not None  # noqa: S101 - asked for when it was started
        assert self._process.stdout is not None  # noqa: S101
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await self._process.stdin.drain()
        return await self._process.stdout.readline() == b"ready\n"

    @property
    def socket(self) -> str:
        """See Viewer."""
        return str(self._folder / "http")

    @property
    def has_ended(self) -> bool:
        """See Viewer."""
        return self._process.returncode is not None

    async def stop(self) -> None:
        """See Viewer."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _not_started(said: str) -> StateConflict:
    _log.warning("viewer.not_started", said=said)
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    return StateConflict("TensorBoard did not start", why=last[:300])
