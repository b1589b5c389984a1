"""BackupService: all data of the platform, as a stream of parts."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from controlplane.backups.backups import LostBlob, Taken
from controlplane.codec import encoder
from controlplane.wire.errors import Context, streaming
from nsml._version import VERSION
from nsml.v1 import backups_pb2 as pb
from nsml.v1 import backups_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from controlplane.backups.backups import Backups

PARTS: Final = ("store", "history", "objects")
"""In order; each is sent, even if it is empty."""

_MESSAGE_BYTES: Final = 1 << 20


class BackupServicer(backups_pb2_grpc.BackupServiceServicer):
    """Backups."""

    def __init__(self, backups: Backups) -> None:
        self._backups = backups

    @streaming
    async def CreateBackup(  # noqa: N802 - named by the contract
        self, request: pb.CreateBackupRequest, _: Context
    ) -> AsyncGenerator[pb.CreateBackupResponse, None]:
        """Stream everything but the blobs."""
        from blake3 import blake3  # noqa: PLC0415 - only who makes backups pays for it

        digests = {
            part: blake3() for part in PARTS if part != "objects" or not request.without_objects
        }
        creating = self._backups.create(without_objects=request.without_objects)
        async with aclosing(creating) as told:
            async for one in told:
                if isinstance(one, Taken):
                    yield pb.CreateBackupResponse(header=_header(one))
                    continue
                for part in list(digests)[: list(digests).index(one.part)]:
                    yield _closed(part, digests.pop(part).hexdigest())
                digests[one.part].update(one.data)
                for data in _cut(one.data):
                    yield pb.CreateBackupResponse(part=pb.BackupPart(name=one.part, data=data))
        for part, digest in digests.items():
            yield _closed(part, digest.hexdigest())

    @streaming
    async def GetBackupBlobs(  # noqa: N802
        self, request: pb.GetBackupBlobsRequest, _: Context
    ) -> AsyncGenerator[pb.GetBackupBlobsResponse, None]:
        """Stream blobs by digest."""
        async for one in self._backups.blobs(request.digests):
            if isinstance(one, LostBlob):
                yield pb.GetBackupBlobsResponse(digest=one.digest, lost=one.why)
                continue
            digest, data = one
            pieces = list(_cut(data)) or [b""]
            for number, piece in enumerate(pieces, start=1):
                yield pb.GetBackupBlobsResponse(
                    digest=digest, data=piece, last=number == len(pieces)
                )


_HEADER: Final = encoder(Taken, pb.BackupHeader, extra=("version",))


def _header(taken: Taken) -> pb.BackupHeader:
    message = _HEADER.to_message(taken)
    message.version = VERSION
    return message


def _closed(part: str, digest: str) -> pb.CreateBackupResponse:
    return pb.CreateBackupResponse(part=pb.BackupPart(name=part, digest=digest))


def _cut(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _MESSAGE_BYTES):
        yield data[start : start + _MESSAGE_BYTES]
