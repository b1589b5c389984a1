"""What reports cost and how fast they are kept: calls, durable points, report to a watching client.

Part of `bench.insight`. The calls are made by a program of its own with the SDK in a session's folder, as a
training loop makes them, and nobody reads meanwhile. Durable points go the whole way: a program in a session
of a platform that was started for this, its agent, its control plane; a point counts once its session's
history has it, which is after it is on disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from bench.platform import Platform
from bench.report import percentile
from nsml._install import write_sdk
from nsml.client import contexts
from nsml.client.connect import connect
from nsml.client.streams import read_logs, read_metrics
from nsml.v1 import resources_pb2, sessions_pb2

if TYPE_CHECKING:
    from nsml.client.calls import Client
    from nsml.v1.sessions_pb2 import Session

METRICS: Final = ("train/loss", "train/accuracy", "lr", "grad_norm")
"""Of each step, here and of the peers."""
STEPS: Final = 400_000
"""For the durable points: some seconds of them, so that a start costs nothing."""
WATCHED: Final = 300
WATCHED_EVERY_S: Final = 0.02
POLL_S: Final = 0.05
PATIENCE_S: Final = 300.0

TIMED: Final = """
import json, time

def timed(one, close=lambda: None, seconds=1.5, few=50):
    "Calls a second over `seconds`, and with closing: when all that was reported is written."
    for step in range(few):
        one(step)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(few):
            one(few + count)
            count += 1
    called = time.perf_counter()
    close()
    closed = time.perf_counter()
    return count / (called - began), (count + few) / (closed - began)

def values(step):
    return 1 / (1 + step), step / (1 + step), 0.001, 0.5 + step % 7
"""
"""What each of the compared programs begins with."""

CALLS: Final = (
    TIMED
    + """
import nsml
report = nsml.report

def one(step):
    report(step=step, train__loss=1 / (1 + step))

def four(step):
    loss, accuracy, lr, norm = values(step)
    report(step=step, train__loss=loss, train__accuracy=accuracy, lr=lr, grad_norm=norm)

print(json.dumps({"calls": timed(one), "steps": timed(four)}))
"""
)

REPORTING: Final = """
import sys, time, nsml
count = int(sys.argv[1])
print(time.time(), flush=True)
for step in range(count):
    nsml.report(
        step=step,
        train__loss=1 / (1 + step),
        train__accuracy=step / (1 + step),
        lr=0.001,
        grad_norm=0.5 + step % 7,
    )
print(time.time(), flush=True)
"""

TELLING: Final = """
import sys, time, nsml
for step in range(int(sys.argv[1])):
    nsml.report(step=step, at=time.time())
    time.sleep(float(sys.argv[2]))
"""


def calls() -> dict[str, float]:
    """Calls a second of one metric, and steps a second of four, in a session's folder."""
    with tempfile.TemporaryDirectory(prefix="nsml-bench-") as folder:
        write_sdk(Path(folder) / "sdk")
        on_platform = {"PYTHONPATH": f"{folder}/sdk", "NSML_RUN_DIR": f"{folder}/run"}
        done = subprocess.run(
            [sys.executable, "-c", CALLS],
            env={**os.environ, **on_platform},
            check=True,
            capture_output=True,
            text=True,
        )
    told = json.loads(done.stdout)
    return {"report_calls_per_s": told["calls"][0], "report_steps_per_s": told["steps"][0]}


def through_the_platform() -> dict[str, float]:
    """Durable points a second, and milliseconds from report to a watching client."""
    with Platform(options=["--embedded"]) as platform:
        return asyncio.run(_measured(platform))


async def _measured(platform: Platform) -> dict[str, float]:
    context = contexts.choose(contexts.load(platform.environment), platform.environment)
    async with connect(context) as client:
        waits = await watched(client)
        return {
            **await _durable(platform, client),
            "report_to_watch_p50_ms": percentile(waits, 0.5),
            "report_to_watch_p95_ms": percentile(waits, 0.95),
        }


async def until_kept(client: Client, session_id: str, points: int) -> int:
    """Wait until so many points of a session are on the disk; how many there are then.

    Raises:
        TimeoutError: they are not there after PATIENCE_S.
    """
    deadline = time.monotonic() + PATIENCE_S
    kept = 0
    while kept < points:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{kept:,} of {points:,} points are there after {PATIENCE_S:g} s")
        await asyncio.sleep(POLL_S)
        kept = sum(metric.count for metric in await client.sessions.metrics(session_id))
    return kept


async def _durable(platform: Platform, client: Client) -> dict[str, float]:
    parts = {name: psutil.Process(platform.pid(name)) for name in ("agent", "controlplane")}
    before = {name: _busy_s(part) for name, part in parts.items()}
    session = await start(client, REPORTING, str(STEPS))
    points = STEPS * len(METRICS)
    kept = await until_kept(client, session.id, points)
    arrived = time.time()
    if kept != points:
        raise AssertionError(f"{kept:,} points are there and {points:,} were reported")
    began, ended = map(float, (await _said(client, session)).split())
    return {
        "durable_points_per_s": points / (arrived - began),
        "reported_points_per_s": points / (ended - began),
        **{
            f"{name}_us_per_point": (_busy_s(part) - before[name]) * 1e6 / points
            for name, part in parts.items()
        },
    }


def _busy_s(part: psutil.Process) -> float:
    times = part.cpu_times()
    return float(times.user + times.system)


async def watched(client: Client) -> list[float]:
    """Milliseconds from each report to a client that watches, one report every 20 ms."""
    session = await start(client, TELLING, str(WATCHED), str(WATCHED_EVERY_S))
    waits: list[float] = []
    watching = read_metrics(client, session.id, follow=True)
    async with aclosing(watching):
        async for answer in watching:
            now = time.time()
            waits += [(now - point.number) * 1000 for point in answer.points]
    if len(waits) != WATCHED:
        raise AssertionError(f"{len(waits)} of {WATCHED} reports were seen")
    return waits


async def start(client: Client, program: str, *arguments: str) -> Session:
    """A session that runs a Python program without devices."""
    spec = sessions_pb2.SessionSpec(
        argv=["python", "-c", program, *arguments],
        resources=resources_pb2.Resources(gpu_thousandths=0),
    )
    return await client.sessions.create(
        sessions_pb2.CreateSessionRequest(request_id=uuid.uuid4().hex, spec=spec)
    )


async def _said(client: Client, session: Session) -> str:
    reading = read_logs(client, session.id, follow=True)
    async with aclosing(reading):
        return b"".join([piece.data async for piece in reading]).decode()


def measure() -> dict[str, float]:
    """All of it."""
    return {**calls(), **through_the_platform()}
