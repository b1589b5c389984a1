"""Environments on nodes: users' requests are forwarded to the agent, and wait for its answer. Nothing is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from controlplane.domain.errors import (
    Denied,
    InvalidRequest,
    NodeUnavailable,
    NotFound,
    StateConflict,
    TooLarge,
)
from controlplane.domain.identity import Role
from controlplane.domain.names import check_node
from controlplane.domain.node_availability import owner_words
from controlplane.domain.policy import ACT_FOR, ALLOW, SEE, Personal, may
from controlplane.domain.values import Isolation
from controlplane.state.agent_connections import Ability, EnvironmentOrder
from controlplane.state.agent_questions import AgentQuestions
from nsml.packages import dockerfile
from nsml.packages.locks import MOST_LOCK_BYTES
from nsml.v1 import agents_pb2, resources_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from controlplane.domain.identity import User, UserCaller
    from controlplane.domain.values import RegistryLogin
    from controlplane.state.agent_connections import AgentConnection, AgentConnections
    from controlplane.state.live_state import LiveState

ANSWER_WITHIN_S: Final = 25.0
"""An agent's timeout for an answer: it may read many files."""
MOST_LISTED: Final = 256
MOST_FILES_BYTES: Final = 3 << 20
MOST_LOG_BYTES: Final = 64 << 10
"""Max log of a build per answer."""
_MOST_FILES: Final = 128
_MOST_CONTEXT_FILES: Final = 4096
_LONGEST_PATH: Final = 1024
_MOST_WORDS: Final = 500


class NodeEnvironments:
    """Forwards requests to agents; on the leader.

    Args:
        names: the name of a user by ID; "" for removed ones.
        logins: all registry logins of a user: only the agent reads which image the files name.
    """

    def __init__(
        self,
        *,
        contacts: AgentConnections,
        state: LiveState,
        random_bytes: Callable[[int], bytes],
        names: Callable[[str], str],
        logins: Callable[[User], Awaitable[Sequence[RegistryLogin]]],
        answer_within_s: float = ANSWER_WITHIN_S,
    ) -> None:
        self._questions = AgentQuestions[agents_pb2.EnvironmentReport](
            contacts=contacts,
            random_bytes=random_bytes,
            subject="environments",
            ability=Ability.ENVIRONMENTS,
        )
        self._state = state
        self._names = names
        self._logins = logins
        self._within_s = answer_within_s

    async def listed(self, who: UserCaller, node: str) -> list[resources_pb2.NodeEnvironment]:
        """Return the node's environments visible to the caller, with the sessions that use them.

        Raises:
            InvalidRequest, NotFound: there is no such node.
            StateConflict: its agent is too old.
            LimitReached: the caller has too many concurrent requests.
            NodeUnavailable: its agent is not connected, or does not answer in time.
        """
        report = await self._ask(who, node, "")
        if report.words:
            raise NodeUnavailable(
                f"node {node} cannot list its environments", why=report.words[:_MOST_WORDS]
            )
        sees_all = who.user.role is Role.ADMIN  # others only their own, whatever the agent reports
        return [
            self._shown(who, one)
            for one in report.environments[:MOST_LISTED]
            if sees_all or one.for_all or one.owner_id == who.user.id
        ]

    async def remove(self, who: UserCaller, node: str, key: str) -> None:
        """Remove an environment. Raises as `listed`; Denied for a shared one; StateConflict if in use."""
        report = await self._ask(who, node, key)
        if report.removed:
            return
        kept = next(iter(report.environments), None)
        if kept is None and not report.words:
            raise NotFound(
                f"node {node} has no environment {key[:80]!r}", attempt=f"nsml env ls {node}"
            )
        if kept is not None and kept.for_all and who.user.role is not Role.ADMIN:
            raise Denied(f"environment {key} is for everybody", why="only administrators remove it")
        raise StateConflict(
            f"environment {key} stays on node {node}", why=report.words[:_MOST_WORDS]
        )

    async def build(
        self, who: UserCaller, node: str, files: resources_pb2.EnvironmentFiles
    ) -> resources_pb2.EnvironmentBuild:
        """Start a build, as for a session of the caller.

        Raises as `listed`; StateConflict also if the node runs no sessions of the caller; TooLarge, InvalidRequest.
        """
        if files.ByteSize() > MOST_FILES_BYTES or len(files.texts) > _MOST_FILES:
            what = "of a Dockerfile" if files.dockerfile else "that list packages"
            raise TooLarge(
                f"the files {what} have over {MOST_FILES_BYTES >> 20} MiB",
                attempt="a session builds it, too",
            )
        if any(len(path) > _LONGEST_PATH for path in (*files.texts, files.entry)):
            # nodes match paths against patterns, in more than linear time
            raise InvalidRequest(f"a path has over {_LONGEST_PATH} characters")
        _check_context(files)
        stored = self._state.nodes.get(check_node(node))
        is_theirs = stored is None or may(who, ACT_FOR, Personal(stored.value.owner)) is ALLOW
        if stored is not None and not is_theirs and (why := owner_words(stored.value)):
            raise StateConflict(f"node {node} {why}")
        has_images = stored is not None and stored.value.isolation is Isolation.CONTAINER
        if files.dockerfile and stored is not None and not has_images:
            raise StateConflict(
                f"node {node} builds no images", why="it runs programs without containers"
            )
        logins = await self._logins(who.user) if has_images else ()
        order = agents_pb2.EnvironmentBuildOrder(files=files)
        return await self._about_build(who, node, order, logins)

    async def build_state(
        self,
        who: UserCaller,
        node: str,
        build_id: str,
        log_offset: int,
        *,
        cancel: bool = False,
    ) -> resources_pb2.EnvironmentBuild:
        """Return the state of the caller's build; `cancel` stops it. Raises as `listed`."""
        order = agents_pb2.EnvironmentBuildOrder(
            build_id=build_id[:64], log_offset=log_offset, cancel=cancel
        )
        return await self._about_build(who, node, order)

    async def _about_build(
        self,
        who: UserCaller,
        node: str,
        order: agents_pb2.EnvironmentBuildOrder,
        logins: Sequence[RegistryLogin] = (),
    ) -> resources_pb2.EnvironmentBuild:
        def send(link: AgentConnection, order_id: str) -> None:
            is_of_dockerfile = bool(order.files.dockerfile)
            link.check(
                Ability.DOCKERFILE_BUILDS if is_of_dockerfile else Ability.ENVIRONMENT_BUILDS
            )
            given = logins if link.keeps_logins_in_memory else ()
            # of an administrator, too: the owner of downloads and environments
            link.order_environment(
                EnvironmentOrder(order_id, owner_id=who.user.id, build=order, logins=given)
            )

        found = (await self._sent(who, node, send)).build
        return resources_pb2.EnvironmentBuild(
            build_id=found.build_id[:64],
            state=found.state,
            words=found.words[:_MOST_WORDS],
            log=found.log[:MOST_LOG_BYTES],
            log_offset=found.log_offset,
            key=found.key[:80],
            was_there=found.was_there,
            lock=found.lock[:MOST_LOCK_BYTES],  # clients check it
        )

    def answered(self, node: str, report: agents_pb2.EnvironmentReport) -> None:
        """Pass an agent's report to AgentQuestions."""
        self._questions.answered(node, report.order_id, report)

    async def _ask(self, who: UserCaller, node: str, remove: str) -> agents_pb2.EnvironmentReport:
        owner = "" if who.user.role is Role.ADMIN else who.user.id

        def send(link: AgentConnection, order_id: str) -> None:
            link.order_environment(EnvironmentOrder(order_id, remove, owner))

        return await self._sent(who, node, send)

    async def _sent(
        self, who: UserCaller, node: str, send: Callable[[AgentConnection, str], None]
    ) -> agents_pb2.EnvironmentReport:
        if self._state.nodes.get(check_node(node)) is None:
            raise NotFound(f"there is no node {node}", attempt="nsml node ls")
        return await self._questions.ask(who.user.id, node, send, within_s=self._within_s)

    def _shown(
        self, who: UserCaller, said: resources_pb2.NodeEnvironment
    ) -> resources_pb2.NodeEnvironment:
        """Convert an agent's report for a user: names instead of IDs."""
        sessions = [self._state.session(one) for one in said.sessions]
        seen = [one.name for one in sessions if one is not None and may(who, SEE, one) is ALLOW]
        return resources_pb2.NodeEnvironment(
            key=said.key[:64],
            owner="" if said.for_all else self._names(said.owner_id),
            for_all=said.for_all,
            package_count=said.package_count,
            bytes=said.bytes,
            shared_bytes=said.shared_bytes,
            built_at=said.built_at,
            used_at=said.used_at,
            sessions=sorted(seen),
            hidden_sessions=len(sessions) - len(seen),
        )


def _check_context(files: resources_pb2.EnvironmentFiles) -> None:
    """Raise InvalidRequest or TooLarge for a Dockerfile, or files of its folder, that a session may not have."""
    if not files.dockerfile and (files.build_arguments or files.context):
        raise InvalidRequest("build arguments or files without a Dockerfile")
    if len(files.context) > _MOST_CONTEXT_FILES:
        raise TooLarge(f"the folder has over {_MOST_CONTEXT_FILES} files")
    paths = [one.path for one in files.context]
    if files.dockerfile and files.dockerfile not in paths:
        raise InvalidRequest("the Dockerfile is not among its files")
    if wrong := next((path for path in paths if not dockerfile.is_path(path)), None):
        raise InvalidRequest(f"{wrong[:80]!r} is not the path of a file in a folder")
    if why := dockerfile.arguments_error(files.build_arguments):
        raise InvalidRequest("the build arguments are not allowed", why=why)
