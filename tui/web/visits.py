"""Visits: a process of the dashboard for each browser, and the connection between the two."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from starlette.websockets import WebSocketDisconnect
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from nsml.common.concurrency import first_to_end
from nsml.common.text import LogText
from tui.web.messages import Focused, Pinged, Resized, Typed, first_size, understood

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.websockets import WebSocket

MOST_VISITS: Final = 3
"""Per page at a time: one more ends the oldest."""
MOST_WORDS: Final = 64 << 10
"""Limit of a program's stderr, such as why it died: the first bytes are kept and reported."""
UNUSED_S: Final = 12 * 3600.0
"""Idle timeout, without keys or mouse moves."""
STOP_WITHIN_S: Final = 2.0
LEFT: Final = 1000
DIED: Final = 1011
RESTARTED: Final = 1012
NOT_UNDERSTOOD: Final = 1008
REPLACED: Final = 4001
UNUSED: Final = 4002
"""Why a visit ended, for its page, which reconnects if it gets no reason, or after a restart."""
_PROGRAM: Final = "tui.main"
_OF_TERMINAL: Final = ("TEXTUAL_", "TERM_PROGRAM", "COLUMNS", "ROWS")


class Visits:
    """The visits of one page.

    Args:
        arguments: of the program.
        order: further input of the program, hidden from other users of the machine.
        environment: of the program.
    """

    def __init__(
        self, arguments: Sequence[str], order: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self._arguments = tuple(arguments)
        self._order = json.dumps(order).encode() + b"\n"
        self._environment = environment
        self._open: list[Visit] = []
        self._turn = asyncio.Lock()

    async def receive(self, socket: WebSocket) -> None:
        """Run a visit on a connection, from start to end."""
        await socket.accept()
        visit = Visit(socket, self._arguments, self._order, self._environment)
        try:
            # One at a time: a visit without a program cannot be ended to make room.
            async with self._turn:
                await self._make_room()
                self._open.append(visit)
                await visit.start(*first_size(socket.query_params))
            await first_to_end(_receive(socket, visit), visit.gone())
        finally:
            await visit.stop()
            if visit in self._open:
                self._open.remove(visit)
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await socket.close(visit.why)

    async def _make_room(self) -> None:
        while len(self._open) >= MOST_VISITS:
            oldest = self._open.pop(0)
            oldest.why = REPLACED
            await oldest.stop()

    async def stop(self) -> None:
        """End all."""
        for visit in self._open:
            visit.why = RESTARTED
        await asyncio.gather(*(visit.stop() for visit in self._open))


class Visit(AppService):
    """A process of the dashboard. It ends with us, however we end: it holds the other end of a pipe."""

    def __init__(
        self,
        socket: WebSocket,
        arguments: tuple[str, ...],
        order: bytes,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(
            "nsml-tui",
            write_bytes=_suppressed(socket.send_bytes),
            write_str=_suppressed(socket.send_text),
            close=_nothing,
            download_manager=DownloadManager(),
        )
        self._arguments = arguments
        self._order = order
        self._given = environment
        self._life_line = -1
        self._stopping = asyncio.Lock()
        self.why = DIED

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        """The given variables, and of ours only those about the browser."""
        made = super()._build_environment(width, height)
        told = {name: value for name, value in made.items() if name.startswith(_OF_TERMINAL)}
        return {**self._given, **told}

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        """Start the program itself: no shell reads the command."""
        ours, theirs = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _PROGRAM, "--visit", str(ours), *self._arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._build_environment(width, height),
                pass_fds=(ours,),
                start_new_session=True,
            )
        except BaseException:
            os.close(theirs)
            raise
        finally:
            os.close(ours)
        assert process.stderr is not None  # noqa: S101 - asked for
        process.stderr = _Words(process.stderr)
        self._life_line = theirs
        # It fits in a pipe: this does not block.
        os.write(theirs, self._order)
        self._process, self._stdin = process, process.stdin
        return process

    async def on_meta(self, data: bytes) -> None:
        """Of requests to the browser, handle only exit: the program opens no pages, and sends no files."""
        if json.loads(data).get("type") == "exit" and self.why == DIED:
            self.why = LEFT

    async def gone(self) -> None:
        """Wait until the program's output ends."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """End the program, gracefully if it is quick; again has no effect."""
        async with self._stopping:
            if self._process is None or self._life_line < 0:
                return
            try:
                with contextlib.suppress(TimeoutError, OSError, WebSocketDisconnect):
                    async with asyncio.timeout(STOP_WITHIN_S):
                        await super().stop()
            finally:
                os.close(self._life_line)
                self._life_line = -1
                if self._process.returncode is None:  # else the pid may be reused by now
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()


class _Words(asyncio.StreamReader):
    """The first part of a program's stderr, as text without control characters; the rest is read, and dropped."""

    def __init__(self, words: asyncio.StreamReader) -> None:
        super().__init__()
        self._words = words
        self._text = LogText(keeps_colour=False)
        self._left = MOST_WORDS

    async def read(self, n: int = -1) -> bytes:
        """Some of it; empty once it has ended."""
        while data := await self._words.read(n):
            kept, self._left = data[: self._left], self._left - len(data[: self._left])
            if told := self._text.feed(kept).encode():
                return told
        return b""


async def _receive(socket: WebSocket, visit: Visit) -> None:
    """Pass on the page's messages, until it is closed, or unused for long."""
    try:
        async with asyncio.timeout(UNUSED_S) as unused:
            while said := understood(await socket.receive_text()):
                match said:
                    case Typed(text):
                        unused.reschedule(asyncio.get_running_loop().time() + UNUSED_S)
                        await visit.send_bytes(text.encode())
                    case Resized(width, height):
                        await visit.set_terminal_size(width, height)
                    case Pinged(word):
                        await socket.send_json(["pong", word])
                    case Focused(has_focus):
                        await (visit.focus() if has_focus else visit.blur())
        visit.why = NOT_UNDERSTOOD
    except TimeoutError:
        visit.why = UNUSED
    except (WebSocketDisconnect, KeyError):
        visit.why = NOT_UNDERSTOOD  # if the page is gone, nobody receives it


async def _nothing() -> None:
    """The connection ends with the program, which reports that just before."""


def _suppressed(send: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """The same, silent once the connection is closed."""

    async def sent(*arguments: Any) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await send(*arguments)

    return sent
