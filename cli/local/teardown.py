"""Stops the programs of a data folder: `nsml down`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from cli.local import processes
from cli.local.bringup import stop_program
from cli.local.data_folder import AGENT, CONTROL_PLANE, TITLES
from nsml.client.contexts import write_private
from nsml.client.errors import ClientError, NotFound, StateConflict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from cli.app import App
    from cli.local.data_folder import DataFolder
    from cli.local.processes import Program
    from nsml.client.calls import Client
    from nsml.client.contexts import Context
    from nsml.common.clock import Clock
    from nsml.v1.nodes_pb2 import Member
    from nsml.v1.sessions_pb2 import Session

T = TypeVar("T")

STOPPED_WITHIN_S = 45.0
"""Longest wait for sessions to stop normally: NSML's grace of 30 s, and a margin."""

LOCAL_GRACE_S = 10.0
"""Grace of replicas stopped without the control plane."""

FINALIZED_WITHIN_S = 5.0
"""Longest wait for ended sessions, once no other is left: data not sent until then stays in their folders, and
is sent after the next start.
"""

_ASK_EVERY_S = 0.2
_REPORTED_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Replica:
    """A running replica on this machine: its folder and its shim."""

    folder: Path
    shim: Program

    @property
    def session_id(self) -> str:
        """Id of its session."""
        return self.folder.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Platform:
    """The control plane's view: live sessions, and the other control planes."""

    sessions: Sequence[Session]
    others: Sequence[Member]


class TearDown:
    """Finds running sessions, agent and control plane, and stops them in order."""

    def __init__(self, app: App, folder: DataFolder) -> None:
        self._app = app
        self._folder = folder

    @property
    def programs(self) -> list[str]:
        """Names of the running programs, the agent first."""
        return [name for name in (AGENT, CONTROL_PLANE) if self._folder.running(name)]

    def replicas(self) -> list[Replica]:
        """Return the running replicas on this machine, with or without an agent."""
        found = []
        for folder in sorted((self._folder.path / AGENT / "replicas").glob("s*.*.*")):
            shim = processes.recorded(folder / "shim.json")
            if shim is not None:
                found.append(Replica(folder, shim))
        return found

    def platform(self) -> Platform | None:
        """Return the platform's state; None if the control plane of this machine does not answer."""
        context = self._folder.context()
        if context is None:
            return None
        try:
            own = str(self._folder.said(CONTROL_PLANE).get("member", ""))
            return asyncio.run(_call(context, lambda client: _seen(client, own)))
        except ClientError:
            return None

    def stop_sessions(self, sessions: Sequence[Session]) -> list[Session]:
        """Stop sessions and wait for them; return those that have not ended in time."""
        context = self._folder.context()
        if context is None or not sessions:
            return []
        self._app.say(f"{'sessions':<14} stopping {len(sessions)}")
        try:
            return asyncio.run(
                _call(context, lambda client: _stop_and_wait(client, sessions, self._app.clock))
            )
        except ClientError as error:
            self._app.say(f"{'sessions':<14} {error}")
            return []

    def stop_replicas(self) -> None:
        """Stop the remaining replicas on this machine, without the control plane's help."""
        replicas = self.replicas()
        if replicas:
            self._app.say(f"{'replicas':<14} stopping {len(replicas)}")
        order = json.dumps({"reason": "nsml down", "grace_s": LOCAL_GRACE_S})
        for replica in replicas:
            write_private(replica.folder / "stop.json", order)
            processes.signal_program(replica.shim, signal.SIGTERM)
        for replica in replicas:
            if not processes.wait_gone(replica.shim, deadline_s=2 * LOCAL_GRACE_S):
                # the kernel kills its program with it
                processes.signal_program(replica.shim, signal.SIGKILL)
                processes.wait_gone(replica.shim, deadline_s=LOCAL_GRACE_S)
        self._let_agent_report(replicas)

    def _let_agent_report(self, replicas: Sequence[Replica]) -> None:
        """Wait for the agent to report the ends: it removes folders once the platform has them."""
        with contextlib.suppress(processes.StartFailed):
            processes.wait_until(
                lambda: not any(replica.folder.exists() for replica in replicas),
                alive=lambda: self._folder.running(AGENT) is not None,
                deadline_s=_REPORTED_WITHIN_S,
            )

    def stop_programs(self) -> None:
        """Stop the agent and then the control plane, with their processes."""
        for name in (AGENT, CONTROL_PLANE):
            was_running = self._folder.running(name) is not None
            is_orderly = stop_program(self._folder, name)
            if was_running:
                how = "stopped" if is_orderly else "killed, since it did not stop by itself"
                self._app.say(f"{TITLES[name]:<14} {how}")


async def _call(context: Context, body: Callable[[Client], Awaitable[T]]) -> T:
    from nsml.client.connect import connect

    async with connect(context, deadline_s=10.0) as client:
        return await body(client)


async def _seen(client: Client, own: str) -> Platform:
    members = (await client.nodes.cluster()).members
    others = [one for one in members if one.name != own] if len(members) > 1 else []
    return Platform(await _live(client), others)


async def _live(client: Client) -> list[Session]:
    from nsml.v1.sessions_pb2 import SessionFilter

    return [session async for session in client.sessions.every(SessionFilter())]


async def _stop_and_wait(
    client: Client, sessions: Sequence[Session], clock: Clock
) -> list[Session]:
    for session in sessions:
        with contextlib.suppress(StateConflict, NotFound):
            await client.sessions.stop(session.id, reason="nsml down")
    wanted = {session.id for session in sessions}
    left: list[Session] = []
    since: float | None = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOPPED_WITHIN_S):
            while left := [session for session in await _live(client) if session.id in wanted]:
                if not all(map(is_finalizing, left)):
                    since = None
                elif since is None:
                    since = clock.monotonic()
                elif clock.monotonic() >= since + FINALIZED_WITHIN_S:
                    break
                await clock.sleep(_ASK_EVERY_S)
    return left


def is_finalizing(session: Session) -> bool:
    """Return whether its programs have ended, and its data is being sent."""
    from nsml.v1.sessions_pb2 import SESSION_STATE_FINALIZING

    return session.state == SESSION_STATE_FINALIZING
