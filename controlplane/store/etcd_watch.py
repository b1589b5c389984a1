"""One watch over successive etcd streams, resumed at its position."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import structlog

from controlplane.store.etcd_members import END
from controlplane.store.etcdpb import kv_pb2
from controlplane.store.etcdpb import rpc_pb2 as pb
from controlplane.store.interface import (
    Compacted,
    Event,
    KeyValue,
    StoreUnavailable,
    WatchBatch,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator

    from controlplane.store.etcd_members import Cluster, Member


class WatchStream:
    """Knows the next revision to deliver, over any connection.

    Args:
        span: first key and end of the watched keys, as in etcd's requests.
        position: the next revision to deliver.
        root: prefix to remove from each key.
        progress_every_s: silence after which the server is asked for a progress message; after as
            long again without one the stream is closed.
    """

    def __init__(
        self,
        cluster: Cluster,
        span: tuple[bytes, bytes],
        *,
        position: int,
        root: str,
        progress_every_s: float,
    ) -> None:
        self._cluster = cluster
        self._span = span
        self._position = position
        self._root = root
        self._progress_every_s = progress_every_s
        self._log = structlog.get_logger()

    async def batches(self) -> AsyncGenerator[WatchBatch, None]:
        """Deliver batches until the connection is lost, then end; call it again to resume.

        Raises:
            Compacted: the position is older than the server's history.
            StoreRefused: we may not read these keys.
        """
        member = self._cluster.current
        try:
            async with contextlib.aclosing(self._read(member)) as batches:
                async for batch in batches:
                    yield batch
            reason = "the stream ended"
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        except StoreUnavailable as error:
            reason = str(error)
        self._cluster.rotate(member)
        self._log.info(
            "watch.interrupted", endpoint=member.endpoint, reason=reason, position=self._position
        )

    async def _read(self, member: Member) -> AsyncGenerator[WatchBatch, None]:
        await member.ready(self._progress_every_s)
        # hasleader: a member that is cut off from the others ends the stream instead of falling
        # silent.
        who = self._cluster.metadata
        call = member.watch(metadata=(*who, ("hasleader", "true")))
        pulse = _Pulse(call, self._progress_every_s)
        watching = asyncio.create_task(pulse.keep(), name="store.watch.pulse")
        try:
            first, end = self._span
            # One revision early: from the very revision of a compaction some servers,
            # Debian's 3.4.23 too, silently omit deletions (etcd-io/etcd#18089). From one before
            # it they answer that it is compacted.
            start = max(1, self._position - 1)
            create = pb.WatchCreateRequest(
                key=first, range_end=end, start_revision=start, fragment=True
            )
            await call.write(pb.WatchRequest(create_request=create))
            held: list[kv_pb2.Event] = []
            while (response := await pulse.read()) is not END:
                if response.canceled:
                    await self._refuse(response, member, who)
                if response.created:
                    continue
                held.extend(response.events)
                if response.fragment:
                    continue
                for batch in self._whole_revisions(held):
                    self._position = batch.revision + 1
                    yield batch
                if not held:
                    # The header's revision is not used: servers before 3.4.25 and 3.5.8 send it
                    # before its events.
                    yield WatchBatch(revision=self._position - 1, events=())
                held = []
        finally:
            watching.cancel()
            call.cancel()
            await asyncio.wait([watching])

    async def _refuse(
        self, response: pb.WatchResponse, member: Member, who: tuple[tuple[str, str], ...]
    ) -> None:
        """Raise the reason for which the server cancelled the watch of `who`."""
        if response.compact_revision:
            raise Compacted(response.compact_revision)
        reason = response.cancel_reason
        if "permission denied" in reason or "auth" in reason:
            await self._cluster.settle_denial(member, self._span, who, self._progress_every_s)
        raise StoreUnavailable(f"etcd cancelled the watch: {reason}")

    def _whole_revisions(self, events: Iterable[kv_pb2.Event]) -> Iterator[WatchBatch]:
        """Group events by revision; delivered ones are left out."""
        batch: list[Event] = []
        revision = 0
        for event in events:
            if event.kv.mod_revision < self._position:
                continue
            if batch and event.kv.mod_revision != revision:
                yield WatchBatch(revision=revision, events=tuple(batch))
                batch = []
            revision = event.kv.mod_revision
            batch.append(self._event(event))
        if batch:
            yield WatchBatch(revision=revision, events=tuple(batch))

    def _event(self, event: kv_pb2.Event) -> Event:
        kv = event.kv
        key = kv.key.decode()[len(self._root) :]
        if event.type == kv_pb2.Event.DELETE:
            return Event(key=key, item=None)
        return Event(
            key=key,
            item=KeyValue(
                key=key,
                value=kv.value,
                create_revision=kv.create_revision,
                mod_revision=kv.mod_revision,
                lease=kv.lease or None,
            ),
        )


class _Pulse:
    """Distinguishes a quiet stream from a dead one.

    Reads are never cancelled by a timeout: grpc.aio ends the whole stream with
    the read.
    """

    def __init__(self, call: Any, every_s: float) -> None:
        self._call = call
        self._every_s = every_s
        self._is_heard = True
        self._is_stalled = False

    async def read(self) -> Any:
        try:
            response = await self._call.read()
        except asyncio.CancelledError:
            if self._is_stalled:
                raise StoreUnavailable("the server has gone silent") from None
            raise
        self._is_heard = True
        return response

    async def keep(self) -> None:
        """Ask for a progress message after each quiet period; give up if there is no answer."""
        is_asked = False
        while True:
            await asyncio.sleep(self._every_s)
            if self._is_heard:
                self._is_heard = is_asked = False
                continue
            if is_asked:
                self._is_stalled = True
                self._call.cancel()
                return
            is_asked = True
            request = pb.WatchRequest(progress_request=pb.WatchProgressRequest())
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._call.write(request)
