"""The service agent.program of the contract server: a few programs that do what tests need, by their first word."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nsml.spec.frames import Frames, framed
from nsml.v1 import sessions_pb2 as pb

PIECE = 32 << 10


def requests_of(tunnel: Iterable[pb.OpenTunnelRequest]) -> Iterator[pb.ProgramRequest]:
    """What the client says."""
    frames = Frames()
    for message in tunnel:
        yield from map(pb.ProgramRequest.FromString, frames.feed(message.data))


def told(response: pb.ProgramResponse) -> pb.OpenTunnelResponse:
    return pb.OpenTunnelResponse(data=framed(response.SerializeToString()))


def out(data: bytes) -> pb.ProgramResponse:
    return pb.ProgramResponse(output=data)


def ended(**how: Any) -> pb.ProgramResponse:
    return pb.ProgramResponse(ended=pb.ProgramEnded(**how))


class Scripted:
    """Programs of sessions, and what was asked of them."""

    def __init__(self) -> None:
        self.refusal = ""
        self.answer = b""
        """What the node says first, in place of `started`."""
        self.starts = True
        self.started: list[pb.StartProgram] = []
        self.targets: list[pb.TunnelTarget] = []
        self.requests: list[pb.ProgramRequest] = []
        """What came after the start, of all programs."""
        self.written = 0
        """Bytes of `endless`."""
        self._taken = 0
        self.left = 0
        """Programs that were over before their end."""

    def serve(
        self,
        target: pb.TunnelTarget,
        tunnel: Iterable[pb.OpenTunnelRequest],
        *,
        is_there: Callable[[], bool],
    ) -> Iterator[pb.OpenTunnelResponse]:
        """Both ends of one, as an agent keeps the contract. `is_there`: whether the client is."""
        self.targets.append(target)
        requests = requests_of(tunnel)
        start = next(requests).start
        self.started.append(start)
        while not self.starts and is_there():
            time.sleep(0.01)
        if self.answer:
            yield pb.OpenTunnelResponse(data=self.answer)
        if self.refusal:
            yield told(pb.ProgramResponse(refused=self.refusal))
            yield pb.OpenTunnelResponse(end=True)
            list(tunnel)
            return
        yield told(pb.ProgramResponse(started=True))
        first, *words = start.argv or ["shell"]
        has_ended = False
        try:
            for response in getattr(self, f"_{first}", self._unknown)(
                words, self._noted(requests), is_there
            ):
                has_ended = response.WhichOneof("kind") == "ended"
                if not has_ended and self._taken:
                    taken, self._taken = self._taken, 0
                    yield told(pb.ProgramResponse(taken=taken))
                yield told(response)
            if has_ended:
                yield pb.OpenTunnelResponse(end=True)
                yield pb.OpenTunnelResponse(gone=True)
                list(tunnel)  # what still comes is dropped
        finally:
            self.left += not has_ended

    def _noted(self, requests: Iterator[pb.ProgramRequest]) -> Iterator[pb.ProgramRequest]:
        for request in requests:
            self.requests.append(request)
            self._taken += len(request.input)
            yield request

    def _unknown(self, words, requests, is_there):
        yield pb.ProgramResponse(error_output=b"nsml: cannot start it\r\n")
        yield ended(exit_code=127)

    def _exit(self, words, requests, is_there):
        yield ended(exit_code=int(words[0]))

    def _killed(self, words, requests, is_there):
        yield ended(signal=int(words[0]))

    def _lost(self, words, requests, is_there):
        yield ended(is_lost=True)

    def _cat(self, words, requests, is_there):
        """Its input is its output."""
        for request in requests:
            if request.input_end:
                yield ended(exit_code=0)
                return
            yield out(request.input)

    def _both(self, words, requests, is_there):
        """All bytes on both streams, by turns."""
        for _ in range(3):
            yield out(bytes(range(256)))
            yield pb.ProgramResponse(error_output=bytes(range(255, -1, -1)))
        yield ended(exit_code=3)

    def _broken(self, words, requests, is_there):
        """A part, and no end: behind the end of its input, as what a client writes is lost with the call."""
        while not self.started[-1].HasField("terminal") and not next(requests).input_end:
            pass
        yield out(b"a part\n")

    def _endless(self, words, requests, is_there):
        while is_there():
            self.written += PIECE
            yield out(b"line\n" * (PIECE // 5))

    def _signals(self, words, requests, is_there):
        """Says which come; the last of `words` ends it."""
        yield out(b"ready\n")
        for request in requests:
            if request.WhichOneof("kind") == "signal":
                yield out(f"signal {request.signal}\n".encode())
                if words and request.signal == int(words[-1]):
                    yield ended(signal=request.signal)
                    return

    def _deaf(self, words, requests, is_there):
        """Takes nothing at all."""
        yield out(b"ready\n")
        while is_there():
            time.sleep(0.01)

    def _hold(self, words, requests, is_there):
        """Ends with its first input, and takes no more."""
        yield out(b"ready\n")
        for request in requests:
            if request.input:
                yield ended(exit_code=0)
                return

    def _shell(self, words, requests, is_there):
        """Echoes what is typed, says its terminal's sizes, and ends with control-D."""
        start = self.started[-1]
        size = start.terminal
        yield out(f"{size.rows} x {size.columns}\r\n".encode())
        for request in requests:
            match request.WhichOneof("kind"):
                case "resize":
                    size = request.resize
                    yield out(f"{size.rows} x {size.columns}\r\n".encode())
                case "input" if b"\x04" in request.input:
                    yield ended(exit_code=0)
                    return
                case "input":
                    yield out(request.input)
