"""The service agent.files of the contract server: a folder that stands for the files of every session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nsml.copying.messages import Refused, refused_message
from nsml.copying.receiver import Receiver
from nsml.copying.sender import Sender
from nsml.copying.sync_receiver import SyncReceiver
from nsml.spec.frames import Frames, framed
from nsml.v1 import sessions_pb2 as pb

PIECE = 64 << 10


class Files:
    """What is copied, and what was asked for."""

    def __init__(self) -> None:
        self.folder = Path("/nonexistent")
        self.refusal = ""
        self.said = b""
        """What the session says in place of what it has to."""
        self.breaks_after = float("inf")
        """Bytes, either way."""
        self.requests: list[pb.FilesRequest] = []
        self.targets: list[pb.TunnelTarget] = []

    def serve(
        self, target: pb.TunnelTarget, tunnel: Iterator[pb.OpenTunnelRequest]
    ) -> Iterator[pb.OpenTunnelResponse]:
        """Both ends of one, as an agent keeps the contract."""
        self.targets.append(target)
        frames, found = Frames(), list[bytes]()
        while not found:
            found += frames.feed(next(tunnel).data)
        request = pb.FilesRequest.FromString(found[0])
        self.requests.append(request)
        if self.refusal:
            answer = pb.FilesResponse(refused=self.refusal)
            yield pb.OpenTunnelResponse(data=framed(answer.SerializeToString()))
        else:
            answer = pb.FilesResponse(started=True, keeps_in_step=request.keeps_in_step)
            started = framed(answer.SerializeToString())
            yield pb.OpenTunnelResponse(data=started + self.said)
            if not self.said:
                passed = 0
                for data in self._passed(request, tunnel):
                    passed += len(data)
                    if passed > self.breaks_after:
                        return
                    if isinstance(data, bytes):
                        yield pb.OpenTunnelResponse(data=data)
        yield pb.OpenTunnelResponse(end=True)
        list(tunnel)

    def _passed(
        self, request: pb.FilesRequest, tunnel: Iterator[pb.OpenTunnelRequest]
    ) -> Iterator[bytes | memoryview]:
        """What is sent, and as views what comes."""
        path = os.fsencode(self.folder) + b"/" + request.path
        try:
            side: Sender | Receiver | SyncReceiver
            if request.keeps_in_step:
                side = SyncReceiver(path)
            elif request.sends:
                side = Sender(path)
            else:
                side = Receiver(path, request.name, keeps_inside=False)
            steps = side.steps()
            said = next(steps)
            while True:
                if said:
                    for at in range(0, len(said), PIECE):
                        yield said[at : at + PIECE]
                    said = next(steps)
                else:
                    message = next(tunnel, None)
                    if message is None:
                        return
                    yield memoryview(message.data)
                    said = steps.send(message.data) if message.data else b""
        except (StopIteration, Refused):
            return
        except OSError as error:
            yield refused_message(error)
