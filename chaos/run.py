"""One run: a platform of its own, load on it, faults under it, and everything written down."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos.disks import disks_here
from chaos.hosts import hosts_for
from chaos.load import Load
from chaos.nemesis import Nemesis
from chaos.platform import ChaosPlatform, Shape, find_database, host_names
from chaos.processes import command_of, processes_with
from chaos.recording import (
    FAULTS,
    OPERATIONS,
    OUTCOME,
    PROGRAMS,
    RUN,
    STORE,
    Recorder,
    write_lines,
)
from chaos.trainer import CODE, LEDGERS, read_ledgers
from cli.exits import CommandError
from nsml._version import VERSION
from nsml.content.ignore import IgnoreRules
from nsml.content.listing import CODE_LIMIT_BYTES
from nsml.content.packing import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_LEFT_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is to be.

    Attributes:
        every_s: seconds between two faults, least and most.
        count: the run ends when so many have fired, if that is sooner.
    """

    seconds: float
    count: int | None
    seed: int
    faults: Sequence[str]
    shape: Shape
    every_s: tuple[float, float]


def run(
    plan: Plan, folder: Path, *, environ: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Torment a platform in `folder` and leave the record of it there. Nothing is left running.

    Raises:
        CommandError: the platform cannot be made, or does not come back.
    """
    binary = shutil.which("etcd", path=environ.get("PATH"))
    if binary is None:
        raise CommandError(
            "there is no etcd on PATH",
            why="a platform that outlives faults stands on three members of it",
            advice="Debian: apt-get install etcd-server",
        )
    database = find_database()
    shape = plan.shape
    left_out = []
    if database is None:
        if shape.control_planes > 1:
            left_out.append("one control plane, with SQLite: PostgreSQL is not installed")
        shape = Shape(control_planes=1, agents=shape.agents)
    hosts = hosts_for(host_names(shape))
    if hosts.why_no_cuts:
        left_out.append(f"no partitions: {hosts.why_no_cuts}")
    disks = disks_here()
    if disks.why_none:
        left_out.append(f"no full disks: {disks.why_none}")
    for reason in left_out:
        say(f"left out: {reason}")
    platform = ChaosPlatform(
        folder=folder,
        hosts=hosts,
        disks=disks,
        shape=shape,
        environ=environ,
        etcd_binary=binary,
        database=database if shape.control_planes > 1 else None,
        say=say,
    )
    try:
        with _ended_by_sigterm():
            asyncio.run(_run(plan, platform, folder, left_out, say))
    finally:
        platform.end()
        hosts.close()


async def _run(
    plan: Plan,
    platform: ChaosPlatform,
    folder: Path,
    left_out: Sequence[str],
    say: Callable[[str], None],
) -> None:
    await platform.start()
    ledgers = folder / "ledgers"
    ledgers.mkdir()
    rng = random.Random(plan.seed)  # noqa: S311 - what comes is to be the same with the same seed
    operations, faults = Recorder(folder / OPERATIONS), Recorder(folder / FAULTS)
    load = Load(
        contexts=platform.contexts(),
        recorder=operations,
        rng=random.Random(rng.random()),  # noqa: S311
        ledgers=ledgers,
        code=pack(_written(folder), ignore=IgnoreRules(""), max_bytes=CODE_LIMIT_BYTES),
    )
    nemesis = Nemesis(
        platform=platform,
        rng=random.Random(rng.random()),  # noqa: S311
        recorder=faults,
        chosen=plan.faults,
        every_s=plan.every_s,
        ledgers=ledgers,
    )
    say(f"tormenting it for {plan.seconds:g} s, seed {plan.seed}")
    began = time.monotonic()
    try:
        outcome = await load.run(lambda: nemesis.torment(plan.seconds, plan.count))
    finally:
        operations.close()
        faults.close()
    say("judging")
    left = await _programs_left(ledgers)
    write_lines(folder / OUTCOME, outcome)
    write_lines(folder / PROGRAMS, read_ledgers(ledgers))
    write_lines(folder / STORE, await asyncio.to_thread(platform.store_history))
    facts: dict[str, Any] = {
        "version": VERSION,
        "seed": plan.seed,
        "seconds": plan.seconds,
        "faults": nemesis.offered,
        "lasted_s": round(time.monotonic() - began, 1),
        "parts": {part.name: part.starts for part in platform.parts.values()},
        "fired": dict(nemesis.fired),
        "failed": dict(nemesis.failed),
        "left_out": list(left_out),
        "left": left,
    }
    (folder / RUN).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _written(folder: Path) -> Path:
    code = folder / "code"
    code.mkdir()
    (code / "main.py").write_text(CODE, encoding="utf-8")
    return code


async def _programs_left(ledgers: Path) -> list[str]:
    """Programs of sessions that still run though every session has ended."""
    ends_at = time.monotonic() + _LEFT_WITHIN_S
    while found := processes_with(LEDGERS, ledgers):
        if time.monotonic() > ends_at:
            return [f"{pid} {command_of(pid)}" for pid in found]
        await asyncio.sleep(0.2)
    return []


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Take SIGTERM for Ctrl+C: what was started is ended all the same."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
