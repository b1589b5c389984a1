"""Streams of the engine: slow ones are read in a thread of their own, blocking, and output in whole lines.

`look` is called several times a second while waiting for an answer, and its exceptions end the wait.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

LOOK_EVERY_S = 0.1
LONGEST_LINE = 256 << 10
"""Bytes of an unfinished line after which it is passed on."""


def whole_lines(frames: Iterable[tuple[bytes | None, bytes | None]]) -> Iterator[bytes]:
    """Yield the output of a container, (stdout, stderr) a frame, in whole lines.

    A frame may end within a line, and one of the other stream may follow: both would be on one line. An unfinished last line
    is finished; one of more than LONGEST_LINE bytes is passed on as it is.
    """
    unfinished = [b"", b""]
    for frame in frames:
        for stream, piece in enumerate(frame):
            lines, newline, rest = (unfinished[stream] + (piece or b"")).rpartition(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, newline, rest = lines + newline + rest, b"", b""
            unfinished[stream] = rest
            if lines + newline:
                yield lines + newline
    yield from (rest + b"\n" for rest in unfinished if rest)


def looked_after(pieces: Iterable[T], look: Callable[[], object]) -> Iterator[T]:
    """Yield `pieces` as they arrive; `look` is called meanwhile, and its exceptions end this."""
    pump = _Pump(pieces)
    threading.Thread(target=pump.work, daemon=True).start()
    try:
        while True:
            look()
            try:
                kind, value = pump.arriving.get(timeout=LOOK_EVERY_S)
            except queue.Empty:
                continue
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        pump.is_unwanted.set()


class _Pump:
    """Reads a blocking iterable in a thread of its own, until it is unwanted."""

    def __init__(self, pieces: Iterable[Any]) -> None:
        self._pieces = pieces
        self.arriving: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=64)
        self.is_unwanted = threading.Event()

    def work(self) -> None:
        try:
            for piece in self._pieces:
                if not self._put("piece", piece):
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the pieces are awaited
            self._put("error", error)
        else:
            self._put("end", None)

    def _put(self, kind: str, value: Any) -> bool:
        while not self.is_unwanted.is_set():
            with contextlib.suppress(queue.Full):
                self.arriving.put((kind, value), timeout=1.0)
                return True
        return False
