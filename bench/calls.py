"""What one small call costs: GetCaller, through all that stands before each method, one after the other and at once.

The peer answers the same calls with a bare gRPC server in a process of its own: same message, plaintext over a
Unix socket, no door. Both are measured in turn. `cpu_us` is processor time of the answering process a call,
which hardly depends on what else the machine does.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import psutil

from bench.platform import Platform
from bench.report import percentile, report
from nsml.client import contexts
from nsml.client.connect import open_channel
from nsml.v1 import accounts_pb2, accounts_pb2_grpc

ROUNDS = 5
CALLS = 2_000
AT_ONCE = 16

Call = Callable[[], Awaitable[object]]


class _Bare(accounts_pb2_grpc.AccountServiceServicer):
    """Answers what everybody is."""

    async def GetCaller(  # noqa: N802 - gRPC's name
        self, _request: accounts_pb2.GetCallerRequest, _context: object
    ) -> accounts_pb2.GetCallerResponse:
        return accounts_pb2.GetCallerResponse()


async def _serve(socket: str) -> None:
    server = grpc.aio.server()
    add: Any = accounts_pb2_grpc.add_AccountServiceServicer_to_server
    add(_Bare(), server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


async def _round(call: Call, pid: int) -> tuple[float, list[float], float]:
    """Processor time a call in microseconds, latencies in ms one after the other, and calls a second at once."""
    process = psutil.Process(pid)
    before = process.cpu_times()
    latencies = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await call()
        latencies.append((time.perf_counter() - began) * 1000)
    began = time.perf_counter()

    async def some() -> None:
        for _ in range(CALLS // AT_ONCE):
            await call()

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    rate = CALLS / (time.perf_counter() - began)
    after = process.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return spent / (2 * CALLS) * 1e6, latencies, rate


async def _measure(platform: Platform) -> tuple[dict[str, float], dict[str, float]]:
    context = contexts.choose(contexts.load(platform.environment), platform.environment)
    with tempfile.TemporaryDirectory(prefix="nsml-") as folder:
        socket = str(Path(folder) / "s")
        serve = (sys.executable, "-m", "bench.calls", "--serve", socket)
        bare = await asyncio.create_subprocess_exec(*serve, stdout=asyncio.subprocess.PIPE)
        try:
            if bare.stdout is None or await bare.stdout.readline() != b"ready\n":
                raise RuntimeError("the bare server did not start")
            async with (
                open_channel(context) as ours,
                grpc.aio.insecure_channel(f"unix:{socket}") as theirs,
            ):
                metadata = (("authorization", f"Bearer {context.token()}"),)
                request = accounts_pb2.GetCallerRequest()
                stub: Any = accounts_pb2_grpc.AccountServiceStub
                platform_stub, bare_stub = stub(ours), stub(theirs)
                calls: dict[str, tuple[Call, int]] = {
                    "ours": (
                        lambda: platform_stub.GetCaller(request, metadata=metadata),
                        platform.pid("controlplane"),
                    ),
                    "bare": (lambda: bare_stub.GetCaller(request, metadata=metadata), bare.pid),
                }
                found: dict[str, list[tuple[float, list[float], float]]] = {n: [] for n in calls}
                for number in range(ROUNDS + 1):
                    for name, (call, pid) in calls.items():
                        figures = await _round(call, pid)
                        if number:  # the first warms
                            found[name].append(figures)
        finally:
            bare.kill()
            await bare.wait()
    return _figures(found["ours"]), _figures(found["bare"])


def _figures(rounds: list[tuple[float, list[float], float]]) -> dict[str, float]:
    latencies = [one for _, taken, _ in rounds for one in taken]
    return {
        "cpu_us": statistics.median(cpu for cpu, _, _ in rounds),
        "p50_ms": statistics.median(latencies),
        "p95_ms": percentile(latencies, 0.95),
        "calls_per_s": statistics.median(rate for _, _, rate in rounds),
    }


def main() -> None:
    """Measure and report."""
    if "--serve" in sys.argv:
        asyncio.run(_serve(sys.argv[sys.argv.index("--serve") + 1]))
        return
    with Platform() as platform:
        figures, peer = asyncio.run(_measure(platform))
    report(figures, peers=peer)


if __name__ == "__main__":
    main()
