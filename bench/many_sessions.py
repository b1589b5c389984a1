"""A platform of many sessions that a dashboard can look at: real gRPC on loopback, everything generated.

It keeps the contract of the calls that `nsml-tui` makes, places nothing and runs nothing: 9,000 live sessions of
which 2,000 wait, 1,000 that have ended, 100 nodes of eight devices, and one running session that has reported a
million points. A real control plane would take its own part of the processors, and change when it likes.

    python -m bench.many_sessions      # prints its address; `rate N` on standard input: N changes a second
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import grpc
import numpy as np

from nsml.v1 import (
    accounts_pb2,
    accounts_pb2_grpc,
    nodes_pb2,
    nodes_pb2_grpc,
    resources_pb2,
    sessions_pb2_grpc,
)
from nsml.v1 import sessions_pb2 as pb

if TYPE_CHECKING:
    from numpy.typing import NDArray

RUNNING: Final = 7_000
WAITING: Final = 2_000
ENDED: Final = 1_000
SESSIONS: Final = RUNNING + WAITING + ENDED
NODES: Final = 100
DEVICES: Final = 8
POINTS: Final = 1_000_000
"""Of the newest session."""
METRIC: Final = "train/loss"
USERS: Final = ("kim", "lee", "park", "choi")
TICK_S: Final = 0.05
"""Between the steps of the watch streams."""
_PART: Final = 500
"""Sessions of one message."""
_ENDED_STATES: Final = (pb.SESSION_STATE_SUCCEEDED, pb.SESSION_STATE_FAILED)
_SPAN_S: Final = 600_000
"""From the oldest session to the newest."""


def session_of(number: int, rng: random.Random, now: float) -> pb.Session:
    """The session of a number from 0 on, the oldest: what ended first, then what waits among what runs."""
    owner = rng.choice(USERS)
    created = int(now - _SPAN_S + number * _SPAN_S / SESSIONS)
    if number < ENDED:
        state = rng.choice(_ENDED_STATES)
    elif number == SESSIONS - 1 or rng.random() * (RUNNING + WAITING) < RUNNING:
        state = pb.SESSION_STATE_RUNNING
    else:
        state = pb.SESSION_STATE_QUEUED
    one = pb.Session(
        id=f"s{number:016d}",
        name=f"{owner}/mnist/{number}",
        owner=owner,
        project=owner,
        state=state,
        attempt=1,
        visibility=resources_pb2.VISIBILITY_TEAM,
        memo=rng.choice(("", "baseline", "second try", "둘째 시도")),
    )
    one.spec.args.extend(["--lr", f"{rng.choice((1, 3)) * 10.0 ** -rng.randint(2, 5):g}"])
    one.spec.resources.gpu_thousandths = 1000 * rng.choice((1, 1, 1, 2, 8))
    one.spec.replica_count = 1
    one.created_at.seconds = created
    if state == pb.SESSION_STATE_QUEUED:
        one.waiting = "needs 8 GPUs on one node: the largest hole has 6"
        return one
    one.started_at.seconds = created + 10
    one.replicas.add(node=f"gpu-{rng.randrange(NODES):03d}")
    step_on(one, rng)
    if state in _ENDED_STATES:
        one.ended_at.seconds = created + 3600
        one.end.exit_code = int(state == pb.SESSION_STATE_FAILED)
    return one


def step_on(session: pb.Session, rng: random.Random) -> None:
    """What it reports next."""
    summary = session.summary
    step = summary.fields["step"].number_value + 100
    summary.update({"step": step, "train/loss": rng.uniform(0.1, 3), "val/acc": rng.random()})
    session.summary_names[:] = ["step", "train/loss", "val/acc"]


def _report(session: pb.Session) -> pb.SessionReport:
    names = session.summary_names
    return pb.SessionReport(session_id=session.id, summary=session.summary, summary_names=names)


class State:
    """What the platform has; `steps` are told what is reported."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        now = time.time()
        self.sessions = [session_of(number, self.rng, now) for number in range(SESSIONS)]
        self.running = [
            number
            for number, one in enumerate(self.sessions)
            if one.state == pb.SESSION_STATE_RUNNING
        ]
        self.revision = 1
        self.rate = 0.0
        self.steps: set[asyncio.Queue[list[pb.SessionReport]]] = set()
        self.values: NDArray[np.float64] = np.exp(-np.arange(POINTS) / POINTS * 3) + (
            np.random.default_rng(seed).normal(size=POINTS) / 20
        )

    async def change(self) -> None:
        """Have `rate` sessions a second report, for ever."""
        due = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            due += self.rate * TICK_S
            if due < 1:
                continue
            some = self.rng.sample(self.running, int(due))
            due -= len(some)
            for number in some:
                step_on(self.sessions[number], self.rng)
            reports = [_report(self.sessions[number]) for number in some]
            for queue in self.steps:
                queue.put_nowait(reports)

    async def obey(self) -> None:
        """Change at the rates that standard input says, until it ends."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        while line := await reader.readline():
            self.rate = float(line.decode().removeprefix("rate"))

    def columns(self, request: pb.ReadSeriesRequest) -> pb.Series:
        """A range of the million points, no more columns than are asked for: x is the step, a second each."""
        start = float(self.sessions[-1].started_at.seconds)
        shift = start if request.axis == pb.SERIES_AXIS_WALL else 0.0
        low = request.low - shift if request.HasField("low") else 0.0
        high = request.high - shift if request.HasField("high") else POINTS - 1.0
        first = min(max(int(np.ceil(low)), 0), POINTS)
        last = min(max(int(np.floor(high)) + 1, first), POINTS)
        grain = max(-(-(last - first) // max(request.width, 1)), 1)
        places = np.arange(first, last, grain)
        ends = np.minimum(places + grain, last)
        part, at = self.values[first:last], places - first
        counts = ends - places
        some = bool(len(places))
        return pb.Series(
            session_id=self.sessions[-1].id,
            name=METRIC,
            attempt=1,
            start=start,
            grain=grain,
            x_low=places + shift,
            x_high=ends - 1 + shift,
            time=start + ends - 1,
            low=np.minimum.reduceat(part, at) if some else (),
            high=np.maximum.reduceat(part, at) if some else (),
            mean=np.add.reduceat(part, at) / counts if some else (),
            last=self.values[ends - 1] if some else (),
            finite=counts,
            odd=np.zeros_like(counts),
        )


class Sessions(sessions_pb2_grpc.SessionServiceServicer):
    """What is read of sessions."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def WatchSessions(  # noqa: N802
        self, _request: pb.WatchSessionsRequest, _context: object
    ) -> AsyncGenerator[pb.WatchSessionsResponse, None]:
        """All live ones, and what they report."""
        queue: asyncio.Queue[list[pb.SessionReport]] = asyncio.Queue()
        self._state.steps.add(queue)
        try:
            revision = self._state.revision
            for place in range(ENDED, SESSIONS, _PART):
                is_last = place + _PART >= SESSIONS
                yield pb.WatchSessionsResponse(
                    # Only behind the last part everything was sent.
                    revision=revision if is_last else 0,
                    changed=self._state.sessions[place : place + _PART],
                    reset=place == ENDED,
                )
            while True:
                reports = await queue.get()
                yield pb.WatchSessionsResponse(revision=self._state.revision, reports=reports)
        finally:
            self._state.steps.discard(queue)

    async def ListSessions(  # noqa: N802
        self, request: pb.ListSessionsRequest, _context: object
    ) -> pb.ListSessionsResponse:
        """Those in the states that are asked for, newest first."""
        wanted = set(request.filter.states)
        fitting = [one for one in self._state.sessions[::-1] if one.state in wanted]
        return pb.ListSessionsResponse(
            sessions=fitting[: request.page_size], revision=self._state.revision
        )

    async def ExplainSession(  # noqa: N802
        self, request: pb.ExplainSessionRequest, _context: object
    ) -> pb.ExplainSessionResponse:
        """Why one waits."""
        session = self._state.sessions[int(request.session.removeprefix("s"))]
        return pb.ExplainSessionResponse(
            session=session, waiting=pb.Waiting(reason=session.waiting)
        )

    async def ListQueue(  # noqa: N802
        self, request: pb.ListQueueRequest, _context: object
    ) -> pb.ListQueueResponse:
        """Who waits, the oldest first."""
        waiting = [one for one in self._state.sessions if one.state == pb.SESSION_STATE_QUEUED]
        start = int(request.cursor or 0)
        page = waiting[start : start + request.page_size]
        rows = [
            pb.QueuedSession(
                place=place,
                session=one.name,
                owner=one.owner,
                resources=one.spec.resources,
                replica_count=1,
                priority=pb.PRIORITY_NORMAL,
                created_at=one.created_at,
                reason=one.waiting,
            )
            for place, one in enumerate(page, start + 1)
        ]
        more = start + len(page)
        return pb.ListQueueResponse(
            sessions=rows,
            next_cursor=str(more) if more < len(waiting) else "",
            queued=len(waiting),
            chosen=len(waiting),
        )

    async def ReadSeries(  # noqa: N802
        self, request: pb.ReadSeriesRequest, _context: object
    ) -> AsyncGenerator[pb.ReadSeriesResponse, None]:
        """The million points of the newest one; others have none."""
        for session in request.sessions:
            answer = pb.ReadSeriesResponse(session_id=session)
            if session == self._state.sessions[-1].id:
                answer.series.append(self._state.columns(request))
            yield answer

    async def ReadLogs(  # noqa: N802
        self, request: pb.ReadLogsRequest, _context: object
    ) -> AsyncGenerator[pb.ReadLogsResponse, None]:
        """A thousand lines, and no more of them."""
        lines = [
            f"epoch {number // 100} step {number}: loss 0.{number}\n" for number in range(1000)
        ]
        yield pb.ReadLogsResponse(data="".join(lines).encode(), attempt=1)
        if request.follow:
            await asyncio.Event().wait()


class Nodes(nodes_pb2_grpc.NodeServiceServicer):
    """What is read of nodes and of the platform."""

    def __init__(self) -> None:
        self._nodes = [_node(number) for number in range(NODES)]

    async def GetCluster(  # noqa: N802
        self, _request: nodes_pb2.GetClusterRequest, _context: object
    ) -> nodes_pb2.GetClusterResponse:
        """The platform as a whole."""
        all_gpus = resources_pb2.Resources(gpu_thousandths=NODES * DEVICES * 1000)
        answer = nodes_pb2.GetClusterResponse(
            version="bench",
            leader="cp-1",
            term=1,
            capacity=all_gpus,
            allocated=all_gpus,
            nodes_ready=NODES,
            nodes_total=NODES,
            sessions_running=RUNNING,
            sessions_queued=WAITING,
        )
        answer.now.GetCurrentTime()
        return answer

    async def ListNodes(  # noqa: N802
        self, _request: nodes_pb2.ListNodesRequest, _context: object
    ) -> nodes_pb2.ListNodesResponse:
        """All of them."""
        return nodes_pb2.ListNodesResponse(nodes=self._nodes)


def _node(number: int) -> nodes_pb2.Node:
    node = nodes_pb2.Node(name=f"gpu-{number:03d}", state=nodes_pb2.NODE_STATE_READY)
    node.last_contact_at.GetCurrentTime()
    node.capacity.gpu_thousandths = node.allocated.gpu_thousandths = DEVICES * 1000
    for index in range(DEVICES):
        use = node.devices.add(allocated_thousandths=1000)
        use.device.uuid, use.device.index = f"GPU-{number:03d}-{index}", index
        use.device.model, use.device.memory_bytes = "A100-SXM4-80GB", 80 << 30
    return node


class Accounts(accounts_pb2_grpc.AccountServiceServicer):
    """Who asks."""

    async def GetCaller(  # noqa: N802
        self, _request: accounts_pb2.GetCallerRequest, _context: object
    ) -> accounts_pb2.GetCallerResponse:
        """The first of the users."""
        return accounts_pb2.GetCallerResponse(user=accounts_pb2.User(name=USERS[0]))


async def serve() -> None:
    """Serve until standard input ends."""
    state = State()
    server = grpc.aio.server()
    sessions_pb2_grpc.add_SessionServiceServicer_to_server(Sessions(state), server)  # type: ignore[no-untyped-call]
    nodes_pb2_grpc.add_NodeServiceServicer_to_server(Nodes(), server)  # type: ignore[no-untyped-call]
    accounts_pb2_grpc.add_AccountServiceServicer_to_server(Accounts(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    changing = asyncio.create_task(state.change())
    print(f"127.0.0.1:{port}", flush=True)
    await state.obey()
    changing.cancel()
    with suppress(asyncio.CancelledError):
        await changing
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve())
