"""Users' questions about environments of this node, and removals. No order is stored."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Self

import structlog

from nodeagent.replica.assignments import users_of
from nodeagent.storage.transfer import uninterrupted
from nsml.common.concurrency import TaskGroup
from nsml.v1 import agents_pb2 as pb
from nsml.v1 import resources_pb2 as resources

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodeagent.environments.virtualenvs import Environments
    from nodeagent.folders import ReplicaFolders
    from nsml.common.clock import Offload

_MOST_LISTED = 256
_KIND = "environment"

log = structlog.get_logger()


class EnvironmentOrders:
    """Carries out the orders, one after the other. A context manager: leaving it gives up what is not done.

    Args:
        environments: of this node.
        folders: of its replicas.
        answered: called when there is an answer.
    """

    def __init__(
        self,
        environments: Environments,
        folders: ReplicaFolders,
        *,
        answered: Callable[[], object],
        run_long: Offload,
    ) -> None:
        self._environments = environments
        self._folders = folders
        self._answered = answered
        self._run_long = run_long
        self._turn = asyncio.Lock()
        self._answers: list[pb.EnvironmentReport] = []
        self._group = TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Begin."""
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        """Give up."""
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)

    def obey(self, order: pb.EnvironmentOrder) -> None:
        """Begin to carry out an order; returns at once."""
        task = self._group.create_task(self._answer(order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def take_answers(self) -> list[pb.EnvironmentReport]:
        """Return the answers since the last call."""
        answers, self._answers = self._answers, []
        return answers

    async def _answer(self, order: pb.EnvironmentOrder) -> None:
        report = pb.EnvironmentReport(order_id=order.order_id)
        try:
            async with self._turn:
                if order.remove:
                    remove = partial(self._removed, order.remove)
                    report.words = await uninterrupted(self._run_long, remove)
                    report.removed = not report.words
                else:
                    report.environments.extend(await uninterrupted(self._run_long, self._listed))
        except OSError as error:
            log.warning("environment.order_failed", error=str(error))
            report.words = error.strerror or str(error)
        self._answers.append(report)
        self._answered()

    def _listed(self) -> list[resources.NodeEnvironment]:
        users = users_of(self._folders, _KIND)
        at = self._environments.stored()
        newest = sorted(at, key=lambda key: at[key], reverse=True)[:_MOST_LISTED]
        return [self._told(key, at[key], users.get(key, ())) for key in newest]

    def _told(
        self, key: str, used_at: float, users: tuple[str, ...] | set[str]
    ) -> resources.NodeEnvironment:
        facts = self._environments.facts(key)
        told = resources.NodeEnvironment(
            key=key,
            owner_id=facts.owner or "",
            for_all=facts.owner == "",
            package_count=facts.package_count,
            bytes=facts.size,
            shared_bytes=facts.shared,
            sessions=sorted(users),
        )
        told.built_at.FromMicroseconds(round(facts.built_at * 1e6))
        told.used_at.FromMicroseconds(round(used_at * 1e6))
        return told

    def _removed(self, key: str) -> str:
        """Remove one; why not, "" where it is gone."""
        if key not in self._environments.stored():
            return "it is not there any more"
        if self._environments.remove(key, lambda: key in users_of(self._folders, _KIND)):
            log.info("environment.removed", key=key)
            return ""
        return "a session uses it, or it is being built"
