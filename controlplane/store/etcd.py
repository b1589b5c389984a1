"""The store on an etcd cluster: a thin client on grpc.aio.

Existing clients each lack something that we need: leases on keys, TLS, deadlines, a watch that
resumes, or a new login when the token expires.

Servers 3.4 have faults that this client does not hide but that callers are safe from: a keep-alive
may succeed on a revoked lease, a read may be stale after a process was paused, a watch may lose an
event after a compaction. So leadership is decided by compares, decisions are based on compared
values of a transaction, and caches list everything again now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, assert_never

import grpc
import grpc.aio
import structlog

from controlplane.store.etcd_members import (
    END,
    NO_LEADER,
    Attempt,
    Cluster,
    LeaseNotFound,
    Login,
    Member,
    ReplyTooLarge,
    StoreBehind,
    Tls,
)
from controlplane.store.etcd_watch import WatchStream
from controlplane.store.etcdpb import rpc_pb2 as pb
from controlplane.store.interface import (
    DEFAULT_DEADLINE_S,
    DEFAULT_QUOTA_BYTES,
    Compacted,
    Compare,
    Delete,
    DeletePrefix,
    Get,
    KeyValue,
    Lease,
    LeaseLost,
    Listing,
    Operation,
    Put,
    Response,
    Space,
    StoreReplaced,
    StoreUnavailable,
    Transaction,
    TransactionResult,
    WatchBatch,
    check,
    prefix_end,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from types import TracebackType

    from nsml.common.clock import Clock

T = TypeVar("T")

PAGE_KEYS: Final = 1000
"""Page size of a listing, in keys."""
RECLAIM_DEADLINE_S: Final = 60.0
SPACE_DEADLINE_S: Final = 2.0
WATCH_RETRY_S: Final = 0.1

_TARGETS: Final = {
    "create_revision": pb.Compare.CREATE,
    "mod_revision": pb.Compare.MOD,
    "value": pb.Compare.VALUE,
}


class EtcdStore:
    """A `KeyValueStore` on an etcd cluster, used as an async context manager.

    Args:
        endpoints: https://HOST:PORT, or http:// on this machine, or unix:///PATH.
        root: prefix of every key, so that an etcd can be shared.
        try_s: how long one member may take over a read before the next one is tried.
        floor_revision: a revision that this store is known to have reached.
        progress_every_s: how often a quiet watch asks for a progress message; after twice as long
            without one it switches to another member.

    Raises:
        StoreUnavailable, StoreRefused, StoreReplaced: (on entering) no sound server answers, and why.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        clock: Clock,
        root: str = "nsml/",
        tls: Tls | None = None,
        login: Login | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        try_s: float = 0.5,
        floor_revision: int = 0,
        progress_every_s: float = 1.0,
        quota_bytes: int = DEFAULT_QUOTA_BYTES,
    ) -> None:
        self._quota_bytes = quota_bytes
        self._clock = clock
        self._root = root
        self._highest = floor_revision
        self._replaced: StoreReplaced | None = None
        self._progress_every_s = progress_every_s
        self._log = structlog.get_logger()
        self._cluster = Cluster(
            endpoints, clock=clock, tls=tls, login=login, deadline_s=deadline_s, try_s=try_s
        )

    async def __aenter__(self) -> Self:
        try:
            await self._revision()
        except StoreUnavailable as error:
            explained = await self._cluster.explained(error)
            await self._cluster.close()
            raise explained from error
        except BaseException:
            await self._cluster.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._cluster.close()

    @property
    def highest_revision(self) -> int:
        """The highest revision seen; keep it as the next `floor_revision`."""
        return self._highest

    # Reads

    async def get(self, key: str) -> KeyValue | None:
        """Return the key as it is now, or None."""
        answer = await self._range(pb.RangeRequest(key=self._key(key)))
        return self._item(answer.kvs[0]) if answer.kvs else None

    async def list(self, prefix: str, *, revision: int = 0, keys_only: bool = False) -> Listing:
        """Return every key under `prefix` at one revision, read page by page."""
        while True:
            try:
                return await self._list_pages(prefix, revision, keys_only=keys_only)
            except Compacted:
                if revision:
                    raise
                # Compacted between two pages: start again at a newer revision.
                self._log.info("listing.restarted", prefix=prefix)

    async def _list_pages(self, prefix: str, revision: int, *, keys_only: bool) -> Listing:
        first, end = self._span(prefix)
        limit = PAGE_KEYS
        items: list[KeyValue] = []
        while True:
            request = pb.RangeRequest(
                key=first, range_end=end, limit=limit, revision=revision, keys_only=keys_only
            )
            try:
                answer = await self._range(request)
            except ReplyTooLarge:
                limit = max(1, limit // 8)
                continue
            items.extend(map(self._item, answer.kvs))
            revision = revision or answer.header.revision
            if not answer.more:
                return Listing(items=tuple(items), revision=revision)
            first = answer.kvs[-1].key + b"\0"

    async def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        async def attempt(member: Member, timeout_s: float) -> pb.RangeResponse:
            floor = self._highest
            answer = await member.range(request, timeout=timeout_s, metadata=self._cluster.metadata)
            if answer.header.revision < floor:
                raise StoreBehind(_went_back(answer.header.revision, floor))
            self._highest = max(self._highest, answer.header.revision)
            return answer

        return await self._call(attempt)

    async def _revision(self) -> int:
        """Return the cluster's newest revision: linearizable, so a quorum has answered."""
        request = pb.RangeRequest(key=self._key("") or b"\0", count_only=True, limit=1)
        return int((await self._range(request)).header.revision)

    async def _call(
        self, attempt: Attempt[T], *, is_write: bool = False, deadline_s: float | None = None
    ) -> T:
        if self._replaced is not None:
            raise self._replaced
        try:
            return await self._cluster.call(attempt, is_write=is_write, deadline_s=deadline_s)
        except StoreReplaced as error:
            self._log.error("store.replaced", reason=str(error))
            self._replaced = error
            raise

    # Writes

    async def commit(self, transaction: Transaction) -> TransactionResult:
        """Decide and apply a transaction."""
        check(transaction)
        request = pb.TxnRequest(
            compare=map(self._compare, transaction.compares),
            success=map(self._operation, transaction.success),
            failure=map(self._operation, transaction.failure),
        )
        operations = (*transaction.success, *transaction.failure)
        is_write = any(not isinstance(operation, Get) for operation in operations)

        async def attempt(member: Member, timeout_s: float) -> pb.TxnResponse:
            floor = self._highest
            answer = await member.transact(
                request, timeout=timeout_s, metadata=self._cluster.metadata
            )
            if answer.header.revision < floor:
                reason = _went_back(answer.header.revision, floor)
                raise StoreReplaced(reason) if is_write else StoreBehind(reason)
            self._highest = max(self._highest, answer.header.revision)
            return answer

        try:
            answer = await self._call(attempt, is_write=is_write)
        except LeaseNotFound as error:
            raise LeaseLost(_lease_of(operations)) from error
        return TransactionResult(
            succeeded=answer.succeeded,
            revision=answer.header.revision,
            responses=tuple(map(self._response, answer.responses)),
        )

    async def compact(self, revision: int) -> None:
        """Discard the history before `revision`."""
        await self._compact(revision, is_physical=False)

    async def _compact(self, revision: int, *, is_physical: bool) -> None:
        request = pb.CompactionRequest(revision=revision, physical=is_physical)

        async def attempt(member: Member, timeout_s: float) -> pb.CompactionResponse:
            return await member.compact(request, timeout=timeout_s, metadata=self._cluster.metadata)

        # "Compacted already" is success. A compaction may be repeated.
        with contextlib.suppress(Compacted):
            await self._call(
                attempt,
                is_write=is_physical,
                deadline_s=RECLAIM_DEADLINE_S if is_physical else None,
            )

    async def reclaim(self) -> None:
        """Compact up to now, defragment each member in turn, and lift the space alarm."""
        await self._compact(await self._revision(), is_physical=True)
        for member in self._cluster.members:
            await self._defragment(member)
        metadata = self._cluster.metadata
        try:
            raised = await self._cluster.current.alarm(
                pb.AlarmRequest(action=pb.AlarmRequest.GET), timeout=2.0, metadata=metadata
            )
            for alarm in raised.alarms:
                if alarm.alarm == pb.NOSPACE:
                    lift = pb.AlarmRequest(
                        action=pb.AlarmRequest.DEACTIVATE,
                        memberID=alarm.memberID,
                        alarm=pb.NOSPACE,
                    )
                    await self._cluster.current.alarm(lift, timeout=2.0, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise StoreUnavailable(f"etcd: {error.details()}") from error

    async def space(self) -> Space:
        """Return the used and total space of the current member's database. Before 3.6 etcd does not report its quota."""
        try:
            found = await self._cluster.current.status(pb.StatusRequest(), timeout=SPACE_DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            raise StoreUnavailable(f"etcd: {error.details()}") from error
        quota = found.dbSizeQuota or self._quota_bytes
        return Space(used_bytes=found.dbSizeInUse, quota_bytes=quota)

    async def members_away(self) -> Mapping[str, str]:
        """Return the endpoints that do not answer, if there are several, with the reason of each.

        A member without a leader is cut off if others have one; without a quorum none has one.
        """
        members = self._cluster.members
        if len(members) == 1:
            return {}
        obstacles = await asyncio.gather(*(one.obstacle(SPACE_DEADLINE_S) for one in members))
        is_decided = "" in obstacles
        return {
            one.endpoint: obstacle
            for one, obstacle in zip(members, obstacles, strict=True)
            if obstacle and (is_decided or obstacle != NO_LEADER)
        }

    async def _defragment(self, member: Member) -> None:
        """Defragment a member; errors of an unavailable one are skipped."""
        try:
            await member.ready(2.0, is_alone=False)
            await member.defragment(
                pb.DefragmentRequest(),
                timeout=RECLAIM_DEADLINE_S,
                metadata=self._cluster.metadata,
            )
        except (grpc.aio.AioRpcError, StoreUnavailable) as error:
            self._log.warning("defragment.failed", endpoint=member.endpoint, reason=str(error))

    # Leases

    async def grant(self, ttl_s: float) -> Lease:
        """Make a lease of at least `ttl_s` seconds, rounded up to whole ones.

        A try with a lost answer leaves a lease without keys, which expires.
        """
        request = pb.LeaseGrantRequest(TTL=max(1, math.ceil(ttl_s)))

        async def attempt(member: Member, timeout_s: float) -> Lease:
            sent_at = self._clock.monotonic()
            answer = await member.grant(request, timeout=timeout_s, metadata=self._cluster.metadata)
            return Lease(id=answer.ID, ttl_s=answer.TTL, valid_until=sent_at + answer.TTL)

        return await self._call(attempt)

    async def keep_alive(self, lease: Lease) -> Lease:
        """Renew a lease."""

        async def attempt(member: Member, timeout_s: float) -> Lease:
            call = member.keep_alive(timeout=timeout_s, metadata=self._cluster.metadata)
            try:
                sent_at = self._clock.monotonic()
                await call.write(pb.LeaseKeepAliveRequest(ID=lease.id))
                answer = await call.read()
                if answer is END:
                    raise StoreUnavailable("etcd ended the stream without an answer")
            finally:
                call.cancel()
            if answer.TTL <= 0:
                raise LeaseLost(lease.id)
            return Lease(id=lease.id, ttl_s=answer.TTL, valid_until=sent_at + answer.TTL)

        try:
            return await self._call(attempt)
        except LeaseNotFound as error:
            raise LeaseLost(lease.id) from error

    async def revoke(self, lease: Lease) -> None:
        """End a lease and delete its keys; repeating it is harmless."""
        request = pb.LeaseRevokeRequest(ID=lease.id)

        async def attempt(member: Member, timeout_s: float) -> pb.LeaseRevokeResponse:
            return await member.revoke(request, timeout=timeout_s, metadata=self._cluster.metadata)

        with contextlib.suppress(LeaseNotFound):
            await self._call(attempt)

    # Watch

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Deliver every change under `prefix` from `from_revision` on, over lost connections."""
        if from_revision < 1:
            raise ValueError("a watch begins at revision 1 or later")
        stream = WatchStream(
            self._cluster,
            self._span(prefix),
            position=from_revision,
            root=self._root,
            progress_every_s=self._progress_every_s,
        )
        while True:
            async with contextlib.aclosing(stream.batches()) as batches:
                async for batch in batches:
                    self._highest = max(self._highest, batch.revision if batch.events else 0)
                    yield batch
            await self._clock.sleep(WATCH_RETRY_S)
            # A quorum has to answer, and not with an old revision, before the watch goes on.
            with contextlib.suppress(StoreUnavailable):
                await self._revision()

    # Translation

    def _key(self, key: str) -> bytes:
        return (self._root + key).encode()

    def _span(self, prefix: str) -> tuple[bytes, bytes]:
        first = self._key(prefix)
        return (first, prefix_end(first)) if first else (b"\0", b"\0")

    def _item(self, kv: Any) -> KeyValue:
        return KeyValue(
            key=kv.key.decode()[len(self._root) :],
            value=kv.value,
            create_revision=kv.create_revision,
            mod_revision=kv.mod_revision,
            lease=kv.lease or None,
        )

    def _compare(self, compare: Compare) -> pb.Compare:
        operand: Any = {compare.field: compare.operand}
        return pb.Compare(
            key=self._key(compare.key),
            target=_TARGETS[compare.field],
            result=pb.Compare.EQUAL if compare.equal else pb.Compare.NOT_EQUAL,
            **operand,
        )

    def _operation(self, operation: Operation) -> pb.RequestOp:
        match operation:
            case Put(key=key, value=value, lease=lease):
                put = pb.PutRequest(key=self._key(key), value=value, lease=lease or 0)
                return pb.RequestOp(request_put=put)
            case Delete(key=key):
                delete = pb.DeleteRangeRequest(key=self._key(key))
                return pb.RequestOp(request_delete_range=delete)
            case DeletePrefix(prefix=prefix):
                first, end = self._span(prefix)
                delete = pb.DeleteRangeRequest(key=first, range_end=end)
                return pb.RequestOp(request_delete_range=delete)
            case Get(key=key):
                return pb.RequestOp(request_range=pb.RangeRequest(key=self._key(key)))
            case _:
                assert_never(operation)

    def _response(self, response: pb.ResponseOp) -> Response:
        found = response.response_range.kvs
        return Response(
            item=self._item(found[0]) if found else None,
            deleted=response.response_delete_range.deleted,
        )


def _went_back(revision: int, floor: int) -> str:
    return (
        f"etcd is at revision {revision} and has been at {floor}: it was restored from an old "
        "copy, or it is another cluster"
    )


def _lease_of(operations: Sequence[Operation]) -> int:
    leases = (operation.lease for operation in operations if isinstance(operation, Put))
    return next((lease for lease in leases if lease is not None), 0)
