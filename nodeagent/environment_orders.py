"""Users' orders about environments of this node: list, remove, build. They are not stored."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, Self

import structlog

from nodeagent.engine.client import EngineError
from nodeagent.replica.assignments import users_of
from nodeagent.replica.secrets import logins_by_registry
from nodeagent.storage.transfer import uninterrupted
from nsml.common.concurrency import TaskGroup
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import resources_pb2 as resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nodeagent.environment_builds import EnvironmentBuilds
    from nodeagent.environments.virtualenvs import Facts
    from nodeagent.folders import ReplicaFolders
    from nsml.common.clock import Clock, Offload

MOST_LISTED: Final = 256
MOST_WAITING: Final = 256
"""Different orders that wait for their turn; more are refused."""
WANTED_FOR_S: Final = 25.0
"""How long the control plane waits, in seconds: older orders are not carried out."""

log = structlog.get_logger()


class Stored(Protocol):
    """Environments of one kind on this node. Blocking; raises OSError and EngineError."""

    def stored(self) -> dict[str, float]:
        """When each was last used: Unix seconds by key."""
        ...

    def owner(self, key: str) -> str | None:
        """Its owner; see Facts."""
        ...

    def facts(self, key: str) -> Facts:
        """Its facts."""
        ...

    def remove(self, key: str, is_used: Callable[[], bool]) -> bool:
        """Remove it unless it is used or being built; whether it is gone."""
        ...


class EnvironmentOrders:
    """Carries out orders, one after the other, equal ones together. A context manager: leaving it drops unfinished ones.

    Args:
        environments: of this node, by their kind in its replicas' uses; no two kinds have the same key.
        folders: of its replicas.
        builds: of environments before a session needs them.
        answered: called when there is an answer.
    """

    def __init__(
        self,
        environments: Mapping[str, Stored],
        folders: ReplicaFolders,
        builds: EnvironmentBuilds,
        *,
        answered: Callable[[], object],
        clock: Clock,
        run_long: Offload,
    ) -> None:
        self._environments = environments
        self._folders = folders
        self._builds = builds
        self._answered = answered
        self._clock = clock
        self._run_long = run_long
        self._waiting: OrderedDict[tuple[str, str], dict[str, float]] = OrderedDict()
        """By key to remove and owner: when each such order arrived (monotonic), by its id."""
        self._answers: list[pb.EnvironmentReport] = []
        self._group = TaskGroup()
        self._working: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin."""
        await self._group.__aenter__()
        await self._builds.__aenter__()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Give up."""
        if self._working is not None:
            self._working.cancel()
        await self._builds.__aexit__(None, None, None)
        await self._group.__aexit__(None, None, None)

    def obey(self, order: pb.EnvironmentOrder) -> None:
        """Begin to carry out an order; returns at once."""
        if order.HasField("build"):
            self._answer([order.order_id], pb.EnvironmentReport(build=self._build(order)))
            return
        wanted = (order.remove, order.owner_id)
        if wanted not in self._waiting and len(self._waiting) >= MOST_WAITING:
            self._answer([order.order_id], pb.EnvironmentReport(words="too many orders wait there"))
            return
        orders = self._waiting.setdefault(wanted, {})
        orders[order.order_id] = self._clock.monotonic()
        if self._working is None or self._working.done():
            self._working = self._group.create_task(self._work())

    def take_answers(self) -> list[pb.EnvironmentReport]:
        """Return the answers since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def _build(self, order: pb.EnvironmentOrder) -> resources.EnvironmentBuild:
        wanted = order.build
        if wanted.HasField("files"):
            logins = logins_by_registry(wanted.registry_logins)
            return self._builds.start(order.owner_id, order.order_id, wanted.files, logins)
        if wanted.cancel:
            self._builds.cancel(order.owner_id, wanted.build_id)
        return self._builds.look(order.owner_id, wanted.build_id, wanted.log_offset)

    async def _work(self) -> None:
        while self._waiting:
            (remove, owner), orders = next(iter(self._waiting.items()))
            since = self._clock.monotonic() - WANTED_FOR_S
            if max(orders.values()) > since:
                report = await self._carried_out(remove, owner)
                self._answer(orders, report)  # also orders that came meanwhile
            del self._waiting[remove, owner]

    def _answer(self, order_ids: Iterable[str], report: pb.EnvironmentReport) -> None:
        for order_id in order_ids:
            report.order_id = order_id
            self._answers.append(pb.EnvironmentReport.FromString(report.SerializeToString()))
        self._answered()

    async def _carried_out(self, remove: str, owner: str) -> pb.EnvironmentReport:
        work = partial(self._removed, remove, owner) if remove else partial(self._listed, owner)
        try:
            return await uninterrupted(self._run_long, work)
        except (EngineError, OSError) as error:
            log.warning("environment.order_failed", error=str(error))
            return pb.EnvironmentReport(words=getattr(error, "strerror", None) or str(error))

    def _listed(self, owner: str) -> pb.EnvironmentReport:
        stored = [
            (used_at, key, kind)
            for kind, environments in self._environments.items()
            for key, used_at in environments.stored().items()
        ]
        users = {kind: users_of(self._folders, kind) for kind in self._environments}
        theirs = (
            one
            for one in sorted(stored, reverse=True)
            if not owner or self._environments[one[2]].owner(one[1]) in {owner, ""}
        )
        found = [
            self._described(self._environments[kind], key, at, users[kind].get(key, set()))
            for at, key, kind in islice(theirs, MOST_LISTED)
        ]
        return pb.EnvironmentReport(environments=found)

    def _described(
        self, environments: Stored, key: str, used_at: float, users: set[str]
    ) -> resources.NodeEnvironment:
        facts = environments.facts(key)
        described = resources.NodeEnvironment(
            key=key,
            owner_id=facts.owner or "",
            for_all=facts.owner == "",
            package_count=facts.package_count,
            bytes=facts.size,
            shared_bytes=facts.shared,
            sessions=sorted(users),
        )
        described.built_at.FromMicroseconds(round(facts.built_at * 1e6))
        described.used_at.FromMicroseconds(round(used_at * 1e6))
        return described

    def _removed(self, key: str, owner: str) -> pb.EnvironmentReport:
        has_it = ((kind, one) for kind, one in self._environments.items() if key in one.stored())
        kind, environments = next(has_it, ("", None))
        whose = None if environments is None else environments.owner(key)
        if environments is None or (owner and whose not in {owner, ""}):
            return pb.EnvironmentReport()
        kept = resources.NodeEnvironment(key=key, owner_id=whose or "", for_all=whose == "")
        if owner and whose != owner:
            return pb.EnvironmentReport(environments=[kept], words="it is for everybody")
        if environments.remove(key, lambda: key in users_of(self._folders, kind)):
            log.info("environment.removed", key=key)
            return pb.EnvironmentReport(removed=True)
        return pb.EnvironmentReport(
            environments=[kept], words="a session uses it, or it is being built"
        )
