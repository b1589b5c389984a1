"""The control planes of a platform: each keeps a record of itself, visible to all of them.

A record has a lease of its own, so that it disappears with its process; if the lease ended during an
outage of the store, it is written again. The leader is not recorded here: see `store.election`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog

from controlplane.codec import codec
from controlplane.domain.conditions import Condition
from controlplane.domain.errors import AlreadyExists, StateConflict
from controlplane.store.cache import TableCache
from controlplane.store.interface import (
    CommitUnknown,
    Lease,
    LeaseLost,
    StoreError,
    StoreUnavailable,
    Transaction,
)
from controlplane.store.tables import Table
from controlplane.stored.v1.records_pb2 import FindingRecord, MemberRecord
from nsml.common.concurrency import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from controlplane.store.interface import KeyValueStore
    from controlplane.store.tables import Stored
    from nsml.common.clock import Clock

RENEWALS_PER_TTL: Final = 4
RETRY_S: Final = 0.2
"""Pause after the store did not answer."""
PATIENCE_TTLS: Final = 3
"""For how many leases another process may have our name: a dead one's record is gone by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One control plane.

    Attributes:
        name: unique among all of a store.
        user_address: HOST:PORT for users, with TLS; "" for none.
        agent_address: HOST:PORT for agents and control planes, with mutual TLS; "" for none.
        local_address: for programs on its own machine, without TLS; "" for none.
        jump_address: HOST:PORT of its jump host for ssh; "" for none.
        started_at: Unix seconds.
        instance: id of its data folder; it differs between two processes with one name.
        settings: non-default settings that must be the same on all control planes, by name.
        findings: conditions that only it may have found, for the others to show.
    """

    name: str
    version: str
    user_address: str = ""
    agent_address: str = ""
    local_address: str = ""
    jump_address: str = ""
    started_at: float = 0.0
    instance: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Condition, ...] = ()

    @property
    def address(self) -> str:
        """The address for agents and other control planes."""
        return self.agent_address or self.local_address


codec(Condition, FindingRecord, omit=("remark",))
_MEMBER: Final = codec(Member, MemberRecord)

MEMBERS: Final = Table[Member]("members/", encode=_MEMBER.encode, decode=_MEMBER.decode)
"""By name."""


class Members:
    """All running control planes, including this one once it has entered.

    Args:
        own: our record, for the others.
        ttl_s: how long our record outlives us.
        findings: conditions that only we may have found; in our record within a quarter of `ttl_s`.
    """

    def __init__(
        self,
        store: KeyValueStore,
        own: Member,
        *,
        clock: Clock,
        ttl_s: float,
        findings: Callable[[], tuple[Condition, ...]] = tuple,
    ) -> None:
        self.own = own
        self._findings = findings
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._cache = TableCache(store, (MEMBERS,), clock=clock)
        self._lease: Lease | None = None
        self._entered_at = 0
        self._log = structlog.get_logger().bind(member=own.name)

    def everyone(self) -> tuple[Member, ...]:
        """Return those running now, sorted by name."""
        records = self._cache.records(MEMBERS)
        return tuple(records[name].value for name in sorted(records))

    async def run(self) -> None:
        """Follow the others and keep our record, until cancelled; outages are waited out.

        Raises:
            AlreadyExists: another running process has our name.
            StateConflict: one of another version entered before us, at our start or while our lease had ended: we would
                drop each other's fields.
            StoreError: the store was replaced, or refuses us.
        """
        async with TaskGroup() as group:
            group.create_task(self._cache.run(), name="members.follow")
            group.create_task(self._stay(), name="members.stay")

    async def leave(self) -> None:
        """Remove our record at once, on shutdown; after `run` has ended."""
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                await self._store.revoke(lease)
            except StoreError as error:  # it ends by itself
                self._log.warning("member.revoke_failed", reason=str(error))

    async def _stay(self) -> None:
        taken_since: float | None = None
        while True:
            try:
                holder = await self._enter()
                if holder is None:
                    taken_since = None
                    await self._renew()
                    continue
                now = self._clock.monotonic()
                taken_since = now if taken_since is None else taken_since
                if now - taken_since > PATIENCE_TTLS * self._ttl_s:
                    raise _taken(holder)
            except LeaseLost as error:
                self._lease = None
                self._log.warning("member.lease_lost", reason=str(error))
                continue
            except (StoreUnavailable, CommitUnknown) as error:
                self._log.warning("member.store_unavailable", reason=str(error))
                taken_since = None  # a lease outlives an outage, whichever member holds it
            await self._clock.sleep(RETRY_S)

    async def _enter(self) -> Member | None:
        """Write our record; return another member with our name, or None."""
        if self._lease is None:
            self._lease = await self._store.grant(self._ttl_s)
        name = self.own.name
        there = await MEMBERS.get(self._store, name)
        if there is not None and there.value.instance != self.own.instance:
            return there.value
        await self._check_version()
        # From our own folder: written before an outage, or by a process that is dead, since we have its lock.
        compare = MEMBERS.absent(name) if there is None else MEMBERS.unchanged(there)
        put = MEMBERS.put(name, self.own, lease=self._lease.id)
        former = await self._former()
        result = await self._store.commit(
            Transaction(
                compares=(compare, *map(MEMBERS.unchanged, former)),
                success=(put, *(MEMBERS.delete(one.key) for one in former)),
            )
        )
        if not result.succeeded:
            return await self._enter()
        if not self._entered_at or there is None:
            self._log.info("member.entered")
        self._entered_at = result.revision
        await self._check_version(before=result.revision)  # one may have entered together with us
        return None

    async def _check_version(self, *, before: int | None = None) -> None:
        """Raise StateConflict if one of another version is there, which entered before this revision."""
        for one in (await MEMBERS.list(self._store)).items:
            is_before = before is None or one.create_revision < before
            if is_before and one.value.version != self.own.version and not self._is_ours(one):
                await self.leave()
                raise _other_version(self.own, one.value)

    def _is_ours(self, record: Stored[Member]) -> bool:
        """Whether a record is of this process, or of a dead one, since we have the lock of its folder."""
        instance = record.value.instance
        return record.key == self.own.name or bool(instance and instance == self.own.instance)

    async def _former(self) -> tuple[Stored[Member], ...]:
        """Return records of our folder's processes under other names: they are dead, since we have its lock.

        Only once per process: if the folder was copied, two processes would remove each other forever.
        """
        if self._entered_at or not self.own.instance:
            return ()
        listed = await MEMBERS.list(self._store)
        return tuple(
            one
            for one in listed.items
            if one.value.instance == self.own.instance and one.key != self.own.name
        )

    async def _renew(self) -> None:
        """Keep the lease alive; returns if our record is gone nevertheless, or must change."""
        while self._lease is not None and self._is_shown() and not self._has_news():
            await self._clock.sleep(self._lease.ttl_s / RENEWALS_PER_TTL)
            try:
                self._lease = await self._store.keep_alive(self._lease)
            except StoreUnavailable as error:
                self._log.warning("member.renewal_failed", reason=str(error))

    def _has_news(self) -> bool:
        found = self._findings()
        if found == self.own.findings:
            return False
        self.own = replace(self.own, findings=found)
        return True

    def _is_shown(self) -> bool:
        """Whether our record exists, as far as the cache knows."""
        has_seen_it = self._cache.revision >= self._entered_at
        return not has_seen_it or self._cache.get(MEMBERS, self.own.name) is not None


def _other_version(own: Member, other: Member) -> StateConflict:
    return StateConflict(
        f"{other.name} runs nsml {other.version} on this store, this is {own.version}",
        why="all control planes of a platform are of one version",
        attempt="stop every one of them, then start the new ones (docs/upgrade.md)",
    )


def _taken(holder: Member) -> AlreadyExists:
    where = holder.address or holder.user_address
    return AlreadyExists(
        f"another control plane is called {holder.name}",
        why=f"it runs{f' at {where}' if where else ''}, from another data folder",
        attempt="give this one a name of its own: member = ... in its settings",
    )
