"""Sessions through the whole platform on one machine, against bare processes in the same run.

They run as processes, also where a container engine is; `bench.starts` has what containers cost.

First 300 sessions of `argv: true` with one GPU each on 8 simulated GPUs, all submitted at once: from the first
submit to the last end. Then 60 single ones, one after the other: from submit to its end as a
watcher sees it. The peer is `true` started and waited for by Python, one after the other.

With `--nodes N` something else is measured: how fast one control plane places on so many nodes, whose agents
run nothing; `bench.many_nodes` says how.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import subprocess
import time
import uuid
from collections.abc import Mapping

from bench import many_nodes
from bench.many_nodes import LOADS
from bench.platform import Platform
from bench.report import percentile, report
from nsml.client import contexts
from nsml.client.calls import Client
from nsml.client.connect import connect
from nsml.client.streams import ENDED_STATES, watch_sessions
from nsml.common.concurrency import TaskGroup
from nsml.v1 import resources_pb2, sessions_pb2

SESSIONS = 300
SINGLES = 60
SUBMITTERS = 16
DEVICES = 8


def request() -> sessions_pb2.CreateSessionRequest:
    """One session of `true` on one GPU."""
    spec = sessions_pb2.SessionSpec(
        argv=["true"], resources=resources_pb2.Resources(gpu_thousandths=1000)
    )
    return sessions_pb2.CreateSessionRequest(request_id=uuid.uuid4().hex, spec=spec)


class Ends:
    """Follows all sessions and tells when each ended.

    Raises when one ended badly, and where the end of one cannot be known any more: nobody is to wait for it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._changed = asyncio.Condition()
        self.ended: dict[str, float] = {}

    async def follow(self) -> None:
        """Run until cancelled."""
        has_begun = False
        async for answer in watch_sessions(self._client, sessions_pb2.SessionFilter()):
            now = time.perf_counter()
            if answer.reset and has_begun:
                raise AssertionError("the watch began anew: sessions may have ended unseen")
            has_begun = True
            async with self._changed:
                for session in answer.changed:
                    if session.state in ENDED_STATES:
                        if session.state != sessions_pb2.SESSION_STATE_SUCCEEDED:
                            raise AssertionError(f"{session.name} ended badly: {session.end}")
                        self.ended.setdefault(session.id, now)
                if unseen := set(answer.removed) - self.ended.keys():
                    raise AssertionError(f"left without their end: {', '.join(sorted(unseen))}")
                self._changed.notify_all()

    async def wait_for(self, ids: set[str]) -> None:
        """Return when all of these have ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: ids <= self.ended.keys())


async def many(client: Client, ends: Ends) -> float:
    """Sessions a second, from the first submit to the last end."""
    began = time.perf_counter()
    places = asyncio.Semaphore(SUBMITTERS)

    async def submit() -> str:
        async with places:
            return (await client.sessions.create(request())).id

    ids = set(await asyncio.gather(*(submit() for _ in range(SESSIONS))))
    await ends.wait_for(ids)
    return SESSIONS / (max(ends.ended[name] for name in ids) - began)


async def singles(client: Client, ends: Ends) -> list[float]:
    """Submit to end of single sessions, milliseconds each."""
    taken = []
    for _ in range(SINGLES):
        began = time.perf_counter()
        session = await client.sessions.create(request())
        await ends.wait_for({session.id})
        taken.append((ends.ended[session.id] - began) * 1000)
    return taken


def bare_process_ms() -> float:
    """Median time to start `true` and wait for it, milliseconds."""
    taken = []
    for _ in range(SINGLES):
        began = time.perf_counter()
        subprocess.run(["true"], check=True)
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


async def measure(environment: Mapping[str, str]) -> dict[str, float]:
    """The figures, on a running platform."""
    context = contexts.choose(contexts.load(environment), environment)
    async with connect(context) as client:
        ends = Ends(client)
        async with TaskGroup() as group:
            follower = group.create_task(ends.follow())
            await singles(client, ends)  # not counted: everything is warm after it
            rate = await many(client, ends)
            single = await singles(client, ends)
            follower.cancel()
    return {
        "sessions_per_s": rate,
        "single_p50_ms": statistics.median(single),
        "single_p95_ms": percentile(single, 0.95),
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="bench.endtoend", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--nodes", type=int, default=0, help="agents that run nothing")
    parser.add_argument("--sessions", type=int, default=20_000, help="queued, with --nodes")
    parser.add_argument("--loads", default="shares", help=f"of {','.join(LOADS)}, with --nodes")
    chosen = parser.parse_args()
    # Whoever ends it, nothing is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not chosen.nodes:
        _measure_programs()
        return
    if unknown := set(chosen.loads.split(",")) - LOADS.keys():
        parser.error(f"--loads: there is no {', '.join(sorted(unknown))}, but {', '.join(LOADS)}")
    report(many_nodes.measure(chosen.nodes, chosen.sessions, chosen.loads.split(",")))


def _measure_programs() -> None:
    processes = ["--isolation", "namespace"]
    with Platform(simulate_gpus=DEVICES, options=processes) as platform:
        figures = asyncio.run(measure(platform.environment))
    bare = bare_process_ms()
    report(figures, peers={"bare_process_ms": bare, "bare_processes_per_s": 1000 / bare})


if __name__ == "__main__":
    main()
