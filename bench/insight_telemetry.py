"""Telemetry of many nodes: what a thousand agents with eight devices each, a reading a second, cost one control plane.

python -m bench.insight_telemetry [--json] [--nodes 1000] [--seconds 60] [--history postgresql://...]

Part of `bench.insight`. The agents (`bench.agents`) are a process of their own: each has a certificate, a
connection, a Control and an Ingest stream. `telemetry_cores` is the processor time of the control plane by the kernel's
account, over the time that was measured; `telemetry_rss_bytes` the most memory that it held meanwhile.
`telemetry_readings_per_s`, of single devices, are those that the platform tells of the last minute afterwards,
`telemetry_sent_per_s` those that were sent: where it does not keep up, the first falls behind. What a node did is made
coarser ten minutes at a time: a measurement of 15 minutes has that in it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import psutil

from bench.agents import DEVICES, AgentProcess
from bench.platform import Platform
from bench.report import report
from nsml.client import contexts
from nsml.client.connect import connect

if TYPE_CHECKING:
    from nsml.client.calls import Client

NODES: Final = 1000
SECONDS: Final = 60.0
EVERY_S: Final = 1.0
LOOK_S: Final = 1.0
COUNTED_S: Final = 60.0
UNDER_WAY_S: Final = 2.0
"""A reading stands for the time before it: of the last seconds there is none yet."""
ASKED_AT_ONCE: Final = 4
_PATIENCE_S: Final = 120.0


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="bench.insight_telemetry", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--nodes", type=int, default=NODES, help="how many agents")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long")
    parser.add_argument("--history", default="", help="postgresql://...: in place of SQLite")
    chosen = parser.parse_args()
    report(measure(chosen.nodes, chosen.seconds, chosen.history))


def measure(nodes: int = NODES, seconds: float = SECONDS, history: str = "") -> dict[str, float]:
    """The figures of so many agents, over so long, on a platform of its own."""
    options = ["--no-agent", "--listen", "127.0.0.1:0"]
    options += ["--history", history] if history else []
    with Platform(simulate_gpus=0, options=options) as platform:
        return asyncio.run(_measured(platform, nodes, seconds))


async def _measured(platform: Platform, nodes: int, seconds: float) -> dict[str, float]:
    server = platform.ready("controlplane")["listen"]
    plane = psutil.Process(platform.pid("controlplane"))
    context = contexts.choose(contexts.load(platform.environment), platform.environment)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(context))
        token = (await client.accounts.create_join_token()).token
        agents = await stack.enter_async_context(
            AgentProcess.of(
                server=server, token=token, count=nodes, does="nothing", readings_every_s=EVERY_S
            )
        )
        await agents.connect()
        await _all_told(client, nodes)
        figures = await _watched(plane, agents, seconds)
        ended = figures.pop("ended") - UNDER_WAY_S
        began = ended - min(seconds - UNDER_WAY_S, COUNTED_S)
        kept = await _kept(client, began, ended, nodes)
        if agents.broken:
            print(f"{len(agents.broken)} streams broke: {agents.broken[-1]}", file=sys.stderr)
    return figures | {"telemetry_readings_per_s": kept / (ended - began)}


async def _all_told(client: Client, nodes: int) -> None:
    """Return once something is known of each."""
    deadline = time.monotonic() + _PATIENCE_S
    while (
        sum(
            any(use.HasField("sample") for use in one.devices) for one in await client.nodes.every()
        )
        < nodes
    ):
        if time.monotonic() > deadline:
            raise TimeoutError("not all nodes tell of their devices")
        await asyncio.sleep(LOOK_S)


async def _watched(plane: psutil.Process, agents: AgentProcess, seconds: float) -> dict[str, float]:
    began, sent, busy = time.time(), agents.readings, _busy_s(plane)
    rss = 0
    while (now := time.time()) < began + seconds:
        rss = max(rss, plane.memory_info().rss)
        await asyncio.sleep(LOOK_S)
    return {
        "ended": now,
        "telemetry_cores": (_busy_s(plane) - busy) / (now - began),
        "telemetry_rss_bytes": float(rss),
        "telemetry_sent_per_s": (agents.readings - sent) * DEVICES / (now - began),
    }


def _busy_s(plane: psutil.Process) -> float:
    times = plane.cpu_times()
    return float(times.user + times.system)


async def _kept(client: Client, began: float, ended: float, nodes: int) -> float:
    """Readings of devices that the platform has of this time."""
    places = asyncio.Semaphore(ASKED_AT_ONCE)

    async def of(node: str) -> int:
        async with places:
            # A cell is told of where the span has its begin, too.
            window_s = time.time() - began + UNDER_WAY_S
            answer = await client.telemetry.read(node=node, window_s=window_s, width=1000)
        return sum(began <= at < ended for one in answer.series if one.device_uuid for at in one.at)

    names = [one.name for one in await client.nodes.every()]
    assert len(names) == nodes
    return sum(await asyncio.gather(*map(of, names)))


if __name__ == "__main__":
    main()
