"""What goes wrong: faults drawn with a seed, several at a time, each with the proof that it fired.

A fault takes hold of parts that no other one holds, does its harm, waits, and heals it. A majority of
the etcd members is left alone, so that every run has a store that should go on, and one control plane
that serves.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psutil

from chaos.check import DISK, PROGRAM
from chaos.hosts import CLIENT
from chaos.processes import (
    AGENT,
    CONTROL_PLANE,
    DATABASE,
    ETCD,
    NotDone,
    Program,
    processes_with,
    variable_of,
)
from chaos.trainer import LEDGERS
from nsml.client.connect import connect
from nsml.client.errors import ClientError
from nsml.common.concurrency import beside_each_other

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence
    from pathlib import Path
    from typing import Any

    from chaos.disks import Disk
    from chaos.platform import ChaosPlatform
    from chaos.recording import Recorder

FAULTS: Final = {
    "kill": "SIGKILL of a part, and its start again",
    "pause": "SIGSTOP beyond the lease, then SIGCONT",
    "stop": "an orderly stop, and the start again",
    "cut": "a partition between two hosts, both ways",
    "one-way": "a partition in one direction",
    "loss": "an etcd member gone for long",
    DISK: "a full disk: an agent's with its programs, the database's, that of the objects",
    PROGRAM: "SIGKILL of the program of a session, in the middle of whatever it does",
    "takeovers": "the leader killed twenty times in a row, at the end",
}
"""The faults that can be asked for."""

CLOCK: Final = "clock"
"""A wall clock set ahead or back by seconds to hours, and right again: only where parts preload what does that."""
TAKEOVERS: Final = 20
_HEALED_WITHIN_S = 10.0
_SUCCESSOR_WITHIN_S = 60.0
_MOST_AT_ONCE = 4
_LEADER_ASKED_S = 2.0
_SUPERVISED_S = 0.5
_REST_S = 2.0, 8.0
_FULL_S = 1.0, 6.0
_WRONG_S = 1.0, 8.0
"""How long a clock is wrong, in seconds; and by how much: """
_WRONG_BY_S = (1.0, 30.0), (60.0, 3_600.0), (7_200.0, 7_200.0)
_TRIES = 20


class NothingFree(Exception):
    """No part is free for such a fault now."""


@dataclass
class Nemesis:
    """Harms a platform for a while.

    Attributes:
        chosen: which of `FAULTS`.
        ledgers: where programs of sessions keep theirs, by which they are known.
        every_s: seconds between the beginnings of two faults: least and most.
        fired: how often each fault took hold, by fault and kind of part.
        failed: what was tried and had no effect, by reason.
    """

    platform: ChaosPlatform
    rng: random.Random
    recorder: Recorder
    chosen: Sequence[str]
    ledgers: Path
    every_s: tuple[float, float] = (0.5, 2.0)
    fired: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    _held: set[str] = field(default_factory=set)

    @property
    def offered(self) -> list[str]:
        """Those of the chosen faults that this platform can have."""
        absent = set()
        if self.platform.hosts.why_no_cuts:
            absent |= {"cut", "one-way"}
        if not self.platform.disks.by_part:
            absent.add(DISK)
        if not self.platform.clocks.ahead_s:
            absent.add(CLOCK)
        return [name for name in self.chosen if name not in absent]

    async def torment(self, lasts_s: float, count: int | None = None) -> None:
        """Fault after fault for so many seconds, or until `count` have fired if that is sooner.

        Each of them once first, so that a short run has them all. All is healed when this returns.
        """
        at_random = [name for name in self.offered if name != "takeovers"]
        async with beside_each_other() as group:
            supervision = group.create_task(self._supervise())
            last = TAKEOVERS if "takeovers" in self.chosen else 0
            await self._draw_for(lasts_s, at_random, None if count is None else count - last)
            await self._draw_rest(at_random)
            if "takeovers" in self.chosen:
                await self._take_over_and_over()
            await self._heal_all()
            supervision.cancel()

    async def _draw_for(self, lasts_s: float, names: Sequence[str], count: int | None) -> None:
        ends_at = time.monotonic() + lasts_s
        first = self.rng.sample(names, len(names))
        async with beside_each_other() as group:
            while names and time.monotonic() < ends_at:
                if count is not None and self.fired.total() >= count:
                    break
                if len(self._held) < _MOST_AT_ONCE:
                    name = first.pop() if first else self.rng.choice(_weighed(names))
                    with suppress(NothingFree):
                        group.create_task(self._draw(name))
                await asyncio.sleep(self.rng.uniform(*self.every_s))

    async def _draw_rest(self, names: Sequence[str]) -> None:
        """Those that did not fire, found nobody free, or had no time: one after the other."""
        for _ in range(_TRIES):
            fired = {key.partition(" ")[0] for key in self.fired}
            left = [name for name in names if name not in fired]
            if not left:
                return
            with suppress(NothingFree):
                await self._draw(left[0])
            await asyncio.sleep(self.every_s[0])

    def _draw(self, name: str) -> Coroutine[Any, Any, None]:
        """A fault on parts that are held from now on; raises NothingFree."""
        match name:
            case "kill" | "pause" | "stop":
                harm = {"kill": self._kill, "pause": self._pause, "stop": self._stop}[name]
                return self._on(name, self._part(name), harm)
            case "loss":
                return self._on(name, self._part(name, ETCD), self._lose)
            case "program":  # PROGRAM
                return self._kill_program()
            case "disk":  # DISK
                return self._fill(self._disk())
            case "clock":  # CLOCK
                return self._set_clock(self._with_clock())
            case _:
                return self._partition(name, is_one_way=name == "one-way")

    # Who

    def _part(self, fault: str, *kinds: str) -> Program:
        """One that is free for a fault."""
        free: dict[str, list[Program]] = {}
        for part in self.platform.parts.values():
            if (not kinds or part.kind in kinds) and self._is_free(part):
                free.setdefault(part.kind, []).append(part)
        if not free:
            raise NothingFree
        return self.rng.choice(free[self._kind(fault, free)])

    def _kind(self, fault: str, free: Collection[str]) -> str:
        """Each kind as likely as the other, those first that the fault has not met yet."""
        fresh = [kind for kind in free if not self.fired[f"{fault} {kind}"]]
        return self.rng.choice(sorted(fresh or free))

    def _is_free(self, part: Program) -> bool:
        if part.name in self._held or not part.is_running:
            return False
        others = [other for other in self.platform.of_kind(part.kind) if other is not part]
        match part.kind:
            case "etcd":
                return not any(other.name in self._held for other in others)
            case "control plane":
                # One that only starts answers nobody.
                return not others or any(
                    other.name not in self._held and self.platform.is_ready(other)
                    for other in others
                )
            case _:
                return True

    # One part

    async def _on(
        self, name: str, part: Program, harm: Callable[[Program], Coroutine[Any, Any, str]]
    ) -> None:
        self._held.add(part.name)
        try:
            proof = await harm(part)
            self._count(name, part.kind, parts=[part.name], proof=proof)
            if part.kind == DATABASE:
                # There is one of it, and what starts needs it: faults of others have their turn.
                await asyncio.sleep(self.rng.uniform(*_REST_S))
        except NotDone as error:
            self._note_failure(name, error)
            await asyncio.to_thread(part.start)
        finally:
            self._held.discard(part.name)

    def _count(self, name: str, kind: str, *, parts: Sequence[str], proof: str) -> None:
        self.fired[f"{name} {kind}"] += 1
        self.recorder.note(healed=name, kind=kind, parts=list(parts), proof=proof)

    def _note_failure(self, name: str, error: Exception) -> None:
        self.failed[f"{name}: {error}"] += 1
        self.recorder.note(failed=name, why=str(error))

    def _began(self, name: str, *parts: str) -> None:
        self.recorder.note(began=name, parts=list(parts))

    async def _kill(self, part: Program) -> str:
        pid = part.process.pid if part.process else 0
        self._began("kill", part.name)
        await asyncio.to_thread(part.kill)
        await asyncio.sleep(self.rng.uniform(0.0, 1.5))
        await self._start(part)
        return f"process {pid} was ended by SIGKILL"

    async def _lose(self, part: Program) -> str:
        self._began("loss", part.name)
        await asyncio.to_thread(part.kill)
        lasts_s = self.rng.uniform(6.0, 12.0)
        await asyncio.sleep(lasts_s)
        await self._start(part)
        return f"gone for {lasts_s:.1f} s"

    def _disk(self) -> Disk:
        """One that is free."""
        free: dict[str, list[Disk]] = {}
        for disk in self.platform.disks.by_part.values():
            part = self.platform.parts.get(disk.part)
            is_held = _full(disk) in self._held
            if not is_held and (disk.kind != DATABASE or (part and self._is_free(part))):
                free.setdefault(disk.kind, []).append(disk)
        if not free:
            raise NothingFree
        return self.rng.choice(free[self._kind(DISK, free)])

    async def _fill(self, disk: Disk) -> None:
        """Leave no room on a disk for a while. Its part may be killed meanwhile, but for the database.

        PostgreSQL ends by itself where it has no room for its log, and has it again when it is started.
        """
        held = {_full(disk)} | ({disk.part} if disk.kind == DATABASE else set())
        self._held |= held
        disks = self.platform.disks
        try:
            self._began(DISK, disk.part)
            proof = await asyncio.to_thread(disks.fill, disk.part)
            lasts_s = self.rng.uniform(*_FULL_S)
            try:
                await asyncio.sleep(lasts_s)
            finally:
                disks.empty(disk.part)
            if disk.kind == DATABASE:
                await self._start(self.platform.parts[disk.part])
            self._count(DISK, disk.kind, parts=[disk.part], proof=f"{proof}, for {lasts_s:.1f} s")
            if disk.kind == DATABASE:
                await asyncio.sleep(self.rng.uniform(*_REST_S))
        except NotDone as error:
            self._note_failure(DISK, error)
        finally:
            self._held -= held

    def _with_clock(self) -> Program:
        """A part whose clock is right now, and can be set."""
        free: dict[str, list[Program]] = {}
        for name, ahead_s in self.platform.clocks.ahead_s.items():
            if not ahead_s and _clock(name) not in self._held:
                part = self.platform.parts[name]
                free.setdefault(part.kind, []).append(part)
        if not free:
            raise NothingFree
        return self.rng.choice(free[self._kind(CLOCK, free)])

    async def _set_clock(self, part: Program) -> None:
        """Set a wall clock for a while. The part may be killed meanwhile, and half of them start with it."""
        self._held.add(_clock(part.name))
        least, most = self.rng.choice(_WRONG_BY_S)
        ahead_s = self.rng.choice((-1, 1)) * self.rng.uniform(least, most)
        clocks = self.platform.clocks
        try:
            self._began(CLOCK, part.name)
            clocks.set(part.name, ahead_s)
            how = "while it ran"
            if self.rng.random() < 0.5 and await self._waits(lambda: self._is_free(part)):
                await self._on("kill", part, self._kill)
                if await self._waits(lambda: self.platform.is_ready(part)):
                    how = "and it started so"
            lasts_s = self.rng.uniform(*_WRONG_S)
            await asyncio.sleep(lasts_s)
            proof = f"{part.name} {ahead_s:+.0f} s for {lasts_s:.1f} s, {how}"
            self._count(CLOCK, part.kind, parts=[part.name], proof=proof)
        except NotDone as error:
            self._note_failure(CLOCK, error)
        finally:
            clocks.set(part.name, 0.0)
            self._held.discard(_clock(part.name))

    async def _waits(self, is_so: Callable[[], bool]) -> bool:
        """Wait for a condition, as long as a part may take to start; return whether it came about."""
        ends_at = time.monotonic() + _HEALED_WITHIN_S
        while time.monotonic() < ends_at:
            if is_so():
                return True
            await asyncio.sleep(0.05)
        return is_so()

    async def _kill_program(self) -> None:
        """One that is in the middle of something; none, where none runs."""
        pids = await asyncio.to_thread(processes_with, LEDGERS, self.ledgers)
        if not pids:
            return
        pid = self.rng.choice(sorted(pids))
        replica = await asyncio.to_thread(variable_of, pid, "NSML_REPLICA")
        if not replica:  # it ended meanwhile
            return
        self._began(PROGRAM, replica)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if await asyncio.to_thread(_is_gone, pid):
            proof = f"process {pid} is gone after SIGKILL"
            self._count(PROGRAM, PROGRAM, parts=[replica], proof=proof)
        else:
            self._note_failure(PROGRAM, NotDone(f"process {pid} stays after SIGKILL"))

    async def _pause(self, part: Program) -> str:
        self._began("pause", part.name)
        await asyncio.to_thread(part.pause)
        lease_s = self.platform.shape.lease_s
        try:
            lasts_s = self.rng.uniform(1.1 * lease_s, 2.5 * lease_s)
            await asyncio.sleep(lasts_s)
        finally:
            part.resume()
        return f"every thread stood still for {lasts_s:.1f} s"

    async def _stop(self, part: Program) -> str:
        self._began("stop", part.name)
        how = None
        if part.kind == DATABASE:
            how = self.rng.choice([signal.SIGINT, signal.SIGQUIT])
        await asyncio.to_thread(part.stop, how)
        code = part.process.returncode if part.process else None
        await asyncio.sleep(self.rng.uniform(0.0, 0.5))
        await self._start(part)
        return f"it ended with {code}"

    async def _start(self, part: Program) -> None:
        """Start it, and again where it finds what a killed one has not let go of yet."""
        ends_at = time.monotonic() + _HEALED_WITHIN_S
        await asyncio.to_thread(part.start)
        while part.kind == DATABASE and time.monotonic() < ends_at:
            await asyncio.sleep(0.3)
            if part.is_running:
                return
            await asyncio.to_thread(part.start)

    async def _supervise(self) -> None:
        """What a machine's own supervisor does: start again what has ended by itself.

        An agent or a control plane ends where it is refused, and may be taken a moment later.
        """
        while True:
            await asyncio.sleep(_SUPERVISED_S)
            for part in self.platform.parts.values():
                if part.name not in self._held and not part.is_running:
                    self.recorder.note(ended=part.name, words=part.last_words())
                    await self._start(part)

    # The network

    async def _partition(self, name: str, *, is_one_way: bool) -> None:
        try:
            source, target = self._two_hosts()
        except NothingFree:
            return
        ways = [(source, target)] if is_one_way else [(source, target), (target, source)]
        key = f"{source}|{target}"
        self._held.add(key)
        hosts = self.platform.hosts
        self._began(name, source, target)
        try:
            for way in ways:
                await asyncio.to_thread(hosts.cut, *way)
            leaks = [way for way in ways if await asyncio.to_thread(hosts.reaches, *way)]
            lasts_s = self.rng.uniform(1.0, 6.0)
            await asyncio.sleep(lasts_s)
        finally:
            for way in ways:
                await asyncio.to_thread(hosts.mend, *way)
            self._held.discard(key)
        if leaks:
            self._note_failure(name, NotDone(f"what {leaks[0][0]} sent did arrive"))
            return
        kinds = " and ".join(sorted({self._kind_of(source), self._kind_of(target)}))
        proof = f"no datagram arrived, for {lasts_s:.1f} s"
        self._count(name, kinds, parts=[source, target], proof=proof)

    def _two_hosts(self) -> tuple[str, str]:
        """Two that talk to one another; any such pair is as likely as another kind of pair."""
        kinds = {
            kind: [part.host for part in self.platform.of_kind(kind)]
            for kind in (ETCD, CONTROL_PLANE, AGENT, DATABASE)
        } | {CLIENT: [CLIENT]}
        talks = [
            (CONTROL_PLANE, ETCD),
            (ETCD, ETCD),
            (AGENT, CONTROL_PLANE),
            (CLIENT, CONTROL_PLANE),
            (CONTROL_PLANE, CONTROL_PLANE),
            (CONTROL_PLANE, DATABASE),
        ]
        one, other = self.rng.choice(
            [(a, b) for a, b in talks if len({*kinds[a], *kinds[b]}) > 1 and kinds[a] and kinds[b]]
        )
        ends = [self.rng.choice(kinds[one]), self.rng.choice(kinds[other])]
        self.rng.shuffle(ends)
        source, target = ends
        taken = {f"{source}|{target}", f"{target}|{source}"} & self._held
        if source == target or taken:
            raise NothingFree
        return source, target

    def _kind_of(self, host: str) -> str:
        part = self.platform.parts.get(host)
        return CLIENT if part is None else part.kind

    # Take-overs

    async def _take_over_and_over(self) -> None:
        """Kill whoever leads, wait for another leader, and so on: the second is where others failed."""
        await self._heal_all()
        term = 0
        for number in range(1, TAKEOVERS + 1):
            try:
                leader, term = await self._leader_after(term)
                await self._depose(leader)
            except NotDone as error:
                self._note_failure("takeovers", error)
                continue
            proof = f"number {number} in a row, of term {term}"
            self._count("takeovers", CONTROL_PLANE, parts=[leader.name], proof=proof)

    async def _depose(self, leader: Program) -> None:
        self._held.add(leader.name)
        try:
            self._began("takeovers", leader.name)
            await asyncio.to_thread(leader.kill)
            await asyncio.sleep(self.rng.uniform(0.0, 0.3))
            await self._start(leader)
        finally:
            self._held.discard(leader.name)

    async def _leader_after(self, term: int) -> tuple[Program, int]:
        """Who leads in a later term than that one.

        Raises:
            NotDone: nobody does.
        """
        ends_at = time.monotonic() + _SUCCESSOR_WITHIN_S
        while time.monotonic() < ends_at:
            for context in self.platform.contexts():
                with suppress(ClientError):
                    async with connect(context, deadline_s=_LEADER_ASKED_S) as client:
                        cluster = await client.nodes.cluster()
                    part = self.platform.parts.get(cluster.leader)
                    if cluster.term > term and part is not None and part.is_running:
                        return part, cluster.term
            await asyncio.sleep(0.05)
        raise NotDone(f"nobody leads after term {term}")

    async def _heal_all(self) -> None:
        """Wait until everything serves; supervision starts what has ended."""
        ends_at = time.monotonic() + _SUCCESSOR_WITHIN_S
        waiting = [*self.platform.of_kind(CONTROL_PLANE), *self.platform.of_kind(AGENT)]
        while time.monotonic() < ends_at:
            if all(self.platform.is_ready(part) for part in waiting):
                return
            await asyncio.sleep(0.2)


def _weighed(names: Sequence[str]) -> list[str]:
    weights = {
        "kill": 4, "pause": 3, "cut": 3, "one-way": 3, "stop": 2, "loss": 1, PROGRAM: 2, DISK: 3, CLOCK: 4,
    }  # fmt: skip
    return [name for name in names for _ in range(weights[name])]


def _full(disk: Disk) -> str:
    """What a full disk holds, so that it is filled by nobody else."""
    return f"disk of {disk.part}"


def _clock(part: str) -> str:
    """What a clock that is set holds, so that nobody else sets it."""
    return f"clock of {part}"


def _is_gone(pid: int) -> bool:
    """Whether a process ends within the time that a fault has to take hold; blocking."""
    try:
        psutil.Process(pid).wait(_HEALED_WITHIN_S)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True
