"""A stream of sessions on a real platform whose processes are killed and paused at random moments.

The programs keep a witness file of their own: what they did, first-hand, with the time of the
kernel's monotonic clock. `Witnesses` keeps those files by hard links, so that they outlive replicas
which are removed; a program does not begin before its file has a second name. `check` then holds
what the platform says against what the programs did.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controlplane.store.etcd import EtcdStore
from controlplane.store.etcd_process import running_in
from controlplane.stored import etcd_codec
from nsml.common.clock import SystemClock
from tests.e2e.platforms import taken
from tests.e2e.programs import wait_for, write_program
from tests.support.in_process import Platform
from tests.support.said import last_line

PROGRAM = '''\
"""Reports and prints; writes down what it did. STEPS < 0: until it is stopped.

A fourth argument is the STEPS of later attempts.
"""
import os, sys, time
import nsml

is_later = os.environ["NSML_ATTEMPT"] != "1"
steps = int(sys.argv[4] if is_later and len(sys.argv) > 4 else sys.argv[1])
pause, code = float(sys.argv[2]), int(sys.argv[3])
witness = os.open("/app/witness", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def note(*words):
    os.write(witness, (" ".join(map(str, (time.monotonic_ns(), *words))) + "\\n").encode())

while os.fstat(witness).st_nlink < 2:
    time.sleep(0.005)
note("begin", os.environ["CUDA_VISIBLE_DEVICES"] or "none")
step = 0
while step != steps:
    nsml.report(step=step, loss=step)
    note("report", step)
    os.write(1, b"line %d %s\\n" % (step, b"x" * (step % 50)))
    note("print", step)
    step += 1
    time.sleep(pause)
note("end", code)
sys.exit(code)
'''

SOAKING = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "NSML_SOAK_SECONDS" not in os.environ, reason="NSML_SOAK_SECONDS is not set"
    ),
]
"""Marks of what takes minutes: only on request."""

ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}
STOPPED_IN_TIME_S = 60.0


@dataclass
class Wanted:
    """A submission that was acknowledged, and how it must end."""

    name: str
    kind: str
    state: str
    exit_code: int | None
    replicas: int = 1


@dataclass(frozen=True)
class Line:
    """One line of a witness."""

    at_ns: int
    word: str
    rest: str


class Witnesses:
    """Keeps what programs wrote about themselves, and which processes there were."""

    def __init__(self, platform: Platform, data: list[Path]) -> None:
        self._folders = [folder / "agent/replicas" for folder in data]
        self._kept = Path(tempfile.mkdtemp(prefix="witnesses-", dir=platform.folder))
        self.processes: dict[int, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def of(self, session_id: str) -> dict[str, list[Line]]:
        """Lines by replica."""
        return {path.name: _lines(path) for path in sorted(self._kept.glob(f"{session_id}.*"))}

    def all(self) -> dict[str, list[Line]]:
        return {path.name: _lines(path) for path in sorted(self._kept.iterdir())}

    def left_processes(self) -> list[int]:
        """Shims and their children that are alive."""
        return [pid for pid, ticks in self.processes.items() if ticks_of(pid) == ticks]

    def folders_left(self) -> list[str]:
        return [
            path.name for folder in self._folders if folder.is_dir() for path in folder.iterdir()
        ]

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            for folder in self._folders:
                for replica in folder.glob("s*.*.*"):
                    self._keep(replica)

    def _keep(self, replica: Path) -> None:
        with suppress(FileExistsError, FileNotFoundError, NotADirectoryError):
            os.link(replica / "app/witness", self._kept / replica.name)
        with suppress(OSError, ValueError):
            claim = json.loads((replica / "shim.json").read_bytes())
            for pid in (claim["pid"], claim.get("child", 0)):
                if pid and pid not in self.processes and (ticks := ticks_of(pid)):
                    self.processes[pid] = ticks


def _lines(path: Path) -> list[Line]:
    lines = []
    for text in path.read_text().splitlines():
        at, word, rest = text.split(" ", 2)
        lines.append(Line(int(at), word, rest))
    return lines


def ticks_of(pid: int) -> int:
    """When a process began; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in {"Z", "X"} else int(fields[19])


class Faults:
    """Ends and pauses the platform's processes; `heal` makes all of them run again."""

    def __init__(self, platform: Platform, rng: random.Random, joined: Callable[[], object] | None):
        self._platform = platform
        self._rng = rng
        self._joined = joined
        self.fired: Counter[str] = Counter()

    def one(self) -> None:
        """One fault, healed when this returns."""
        draw = self._rng.choice(
            [
                self._kill_one,
                self._kill_one,
                self._kill_both,
                self._pause,
                self._pause,
                self._restart,
            ]
        )
        draw()

    def at_random_moments(self, periods: dict[str, float], lasts_s: float) -> None:
        """SIGKILL of each of the named once in every period of so many seconds, at a random moment.

        "agents" stands for one of the agents at a time.
        """
        began = time.monotonic()
        moments = [
            (number * every_s + self._rng.uniform(0, every_s), name)
            for name, every_s in periods.items()
            for number in range(int(lasts_s // every_s))
        ]
        for at_s, name in sorted(moments):
            time.sleep(max(began + at_s - time.monotonic(), 0.0))
            victim = self._rng.choice(["agent", "second"]) if name == "agents" else name
            self.hit(victim, signal.SIGKILL)
            self.heal()

    def pids(self) -> dict[str, int]:
        """The processes that can be hit; those that are down are not there."""
        found = {}
        data = self._platform.folder / "data"
        places = {"controlplane": data, "agent": data}
        if self._joined:
            places["second"] = self._platform.folder / "second"
        for name, folder in places.items():
            program = "agent" if name == "second" else name
            with suppress(OSError, ValueError):
                found[name] = int(json.loads((folder / f"{program}.pid").read_text())["pid"])
        for etcd in running_in(data / "controlplane/etcd"):
            found["etcd"] = etcd.pid
        return {name: pid for name, pid in found.items() if ticks_of(pid)}

    def heal(self) -> None:
        """Let everything run."""
        for pid in self.pids().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._platform.nsml("up", timeout_s=120)
        if self._joined:
            self._joined()

    def hit(self, name: str, number: signal.Signals) -> None:
        pid = self.pids().get(name)
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            self.fired[f"{number.name} {name}"] += 1

    def _any(self) -> str:
        return self._rng.choice(sorted(self.pids()))

    def _kill_one(self) -> None:
        self.hit(self._any(), signal.SIGKILL)
        time.sleep(self._rng.uniform(0, 1.5))
        self.heal()

    def _kill_both(self) -> None:
        for name in self._rng.sample(["controlplane", "agent"], 2):
            self.hit(name, signal.SIGKILL)
            time.sleep(self._rng.uniform(0, 0.3))
        self.heal()

    def _pause(self) -> None:
        name = self._any()
        self.hit(name, signal.SIGSTOP)
        time.sleep(self._rng.uniform(0.1, 5.0))
        self.hit(name, signal.SIGCONT)
        self.heal()

    def _restart(self) -> None:
        self._platform.nsml("down", "--keep-sessions", timeout_s=120)
        self.fired["down"] += 1
        self.heal()


class Stream:
    """Submits sessions one after another and stops those that would never end."""

    def __init__(self, platform: Platform, rng: random.Random, *, gangs: bool) -> None:
        self._platform = platform
        self._rng = rng
        self._kinds = ["true", "report", "report", "fails", "endless", *(["gang"] if gangs else [])]
        self._code = write_program(platform.folder / "code", PROGRAM)
        self.acknowledged: list[Wanted] = []
        self.refused: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._submit_all, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _submit_all(self) -> None:
        while not self._over.is_set():
            self._submit(self._rng.choice(self._kinds))
            self._over.wait(self._rng.uniform(0, 1.0))

    def _submit(self, kind: str) -> None:
        steps, pause = self._rng.randrange(1, 120), self._rng.choice([0.0, 0.01, 0.03])
        gpus = self._rng.choice(["1", "1", "0.5", "2", "0"])
        options = ["-g", gpus, "-a", f"{steps} {pause} 0"]
        match kind:
            case "true":
                options = ["-g", gpus, "--no-code", "--argv", "--", "true"]
            case "fails":
                options = ["-g", gpus, "-a", f"{steps} {pause} 3"]
            case "endless":
                options = ["-g", gpus, "--grace", "1s", "-a", "-1 0.02 0"]
            case "gang":
                options = ["-g", "1", "--nodes", "2", "-a", f"{steps} {pause} 0"]
        wanted = self._run(kind, options)
        if wanted is not None and kind == "endless":
            self._stop_later(wanted, self._rng.uniform(0, 6))

    def _run(self, kind: str, options: list[str]) -> Wanted | None:
        """Submit one and note what is to become of it; None where it was refused."""
        done = self._platform.nsml("run", "-o", "name", *options, cwd=self._code, check=False)
        if done.returncode != 0:
            self.refused.append(done.stderr)
            return None
        state, exit_code = {"fails": ("FAILED", 3), "endless": ("STOPPED", None)}.get(
            kind, ("SUCCEEDED", 0)
        )
        wanted = Wanted(done.stdout.strip(), kind, state, exit_code)
        wanted.replicas = 2 if kind == "gang" else 1
        self.acknowledged.append(wanted)
        return wanted

    def _stop_later(self, wanted: Wanted, seconds: float) -> None:
        stopper = threading.Thread(target=self._stop, args=(wanted, seconds), daemon=True)
        self._threads.append(stopper)
        stopper.start()

    def _stop(self, wanted: Wanted, after_s: float) -> None:
        self._over.wait(after_s)
        ends_at = time.monotonic() + STOPPED_IN_TIME_S
        while time.monotonic() < ends_at:
            done = self._platform.nsml("stop", wanted.name, "-y", check=False)
            if done.returncode in {0, 6}:
                return
            time.sleep(0.3)
        self.refused.append(f"stop {wanted.name}: {done.stderr}")


class Crowd(Stream):
    """So many sessions at a time, each with half a device, that report and print at a steady pace.

    When one ends another takes its place. Some end badly, some are stopped, and some are gangs.
    """

    REPORTS_PER_S = 7

    def __init__(self, platform: Platform, rng: random.Random, *, size: int) -> None:
        self._size = size
        self._live: set[str] = set()
        super().__init__(platform, rng, gangs=True)

    def _submit_all(self) -> None:
        while not self._over.is_set():
            if len(self._live) < self._size:
                self._one_more()
            else:
                # One that cannot be asked now is asked again in a moment.
                with suppress(AssertionError, subprocess.TimeoutExpired):
                    self._live &= {
                        name
                        for name, item in listed(self._platform).items()
                        if item["state"] not in ENDED
                    }
                self._over.wait(0.5)

    def _one_more(self) -> None:
        kind = self._rng.choices(["report", "fails", "endless", "gang"], [6, 2, 1, 1])[0]
        seconds = self._rng.uniform(45, 75)
        steps, pause = round(seconds * self.REPORTS_PER_S), 1 / self.REPORTS_PER_S
        options = ["-g", "0.5", "-c", "1", "--memory", "200M", "--grace", "2s"]
        match kind:
            case "report":
                options += ["-a", f"{steps} {pause} 0"]
            case "fails":
                options += ["-a", f"{steps} {pause} 3"]
            case "endless":
                options += ["-a", f"-1 {pause} 0"]
            case "gang":
                options += ["--nodes", "2", "-a", f"{steps} {pause} 0"]
        wanted = self._run(kind, options)
        if wanted is None:
            self._over.wait(0.2)
            return
        self._live.add(wanted.name)
        if kind == "endless":
            self._stop_later(wanted, seconds)


def listed(platform: Platform) -> dict[str, dict[str, Any]]:
    """Every session by name."""
    return {item["name"]: item for item in platform.json("ps", "-a")["items"]}


def settle(platform: Platform, stream: Stream, *, within_s: float = 120.0) -> dict[str, Any]:
    """Wait until every session has ended; all sessions then.

    One that was made though its submission was never answered has nobody who stops it but us.
    """
    answered = {wanted.name for wanted in stream.acknowledged}
    for name in set(listed(platform)) - answered:
        done = taken(platform, "stop", name, "-y")
        print("made without an answer:", name, "stop ended with", done.returncode)
        assert done.returncode in {0, 6}, done.stderr
    last: dict[str, Any] = {}

    def ended() -> bool:
        nonlocal last
        last = listed(platform)
        return all(item["state"] in ENDED for item in last.values())

    try:
        wait_for(ended, timeout_s=within_s, what="all sessions ended")
    except AssertionError:
        stuck = {name: item for name, item in last.items() if item["state"] not in ENDED}
        raise AssertionError(f"stuck: {json.dumps(stuck, indent=1)[:4000]}") from None
    return last


def check_ends(stream: Stream, sessions: dict[str, Any]) -> Iterator[str]:
    """What is wrong with how sessions ended."""
    for wanted in stream.acknowledged:
        item = sessions.get(wanted.name)
        if item is None:
            yield f"{wanted.name} was acknowledged and is lost"
            continue
        if item["state"] != wanted.state:
            yield f"{wanted}: {json.dumps(item)}"
        elif (
            wanted.exit_code is not None
            and item.get("end", {}).get("exit_code", 0) != wanted.exit_code
        ):
            yield f"{wanted}: exit code: {json.dumps(item)}"
        if item.get("attempt", 0) > 1:
            yield f"{wanted}: attempt {item['attempt']}"


def check_streams(
    platform: Platform, witnesses: Witnesses, name: str, session_id: str
) -> Iterator[str]:
    """What is wrong with the reports and bytes of one session."""
    # Refused when nothing was reported at all.
    text = platform.nsml("events", name, "loss", "--attempts", "-o", "csv", check=False).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    for replica, lines in witnesses.of(session_id).items():
        _, attempt, rank = replica.split(".")
        complete = any(line.word == "end" for line in lines)
        printed = [int(line.rest) for line in lines if line.word == "print"]
        reported = [int(line.rest) for line in lines if line.word == "report"]
        command = [str(Path(platform.environment["PATH"].split(":")[0]) / "nsml"), "logs", name]
        done = subprocess.run(
            [*command, "--attempt", attempt, "--rank", rank],
            env=platform.environment,
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"nsml logs {name}: {last_line(done.stderr.decode())}"
        raw = done.stdout
        steps = [int(step) for step in re.findall(rb"^line (\d+) x*$", raw, re.MULTILINE)]
        yield from _compare(f"{name} rank {rank} log", printed, steps, complete=complete)
        whole = b"".join(b"line %d %s\n" % (step, b"x" * (step % 50)) for step in steps)
        if not raw.startswith(whole):
            yield f"{name} rank {rank} log: bytes differ"
        events = [
            int(float(row["step"]))
            for row in rows
            if (row["attempt"], row["rank"]) == (attempt, rank)
        ]
        yield from _compare(f"{name} rank {rank} events", reported, events, complete=complete)


def _compare(what: str, did: list[int], said: list[int], *, complete: bool) -> Iterator[str]:
    """One more than was witnessed may have been done by a program that was killed in between."""
    if said != list(range(len(said))):
        yield f"{what}: not once and in order: {said}"
    if not len(did) <= len(said) <= len(did) + (0 if complete else 1):
        yield f"{what}: {len(did)} done, {len(said)} told"


def check_devices(witnesses: Witnesses, shares: dict[str, int]) -> Iterator[str]:
    """Programs that held more of a device at once than there is; `shares` in thousandths."""
    changes: dict[str, list[tuple[int, int, str]]] = {}
    for replica, lines in witnesses.all().items():
        if not lines or lines[0].rest == "none":
            continue
        for device in lines[0].rest.split(","):
            share = shares.get(replica.split(".")[0], 1000)
            changes.setdefault(device, []).append((lines[0].at_ns, share, replica))
            changes[device].append((lines[-1].at_ns, -share, replica))
    for device, moves in changes.items():
        held = 0
        for _, share, replica in sorted(moves):
            held += share
            if held > 1000:
                yield f"{device} is held {held}/1000 when {replica} begins"


def keys_left(platform: Platform, sessions: dict[str, Any]) -> list[str]:
    """What etcd still holds of sessions that have ended."""
    socket = platform.folder / "data/controlplane/etcd/localhost:1"
    if not socket.exists():
        return []

    async def listed_keys() -> list[str]:
        async with EtcdStore([f"unix://{socket}"], clock=SystemClock()) as store:
            found = []
            for prefix in (etcd_codec.SESSIONS, etcd_codec.NAMES, etcd_codec.REQUESTS):
                found += [item.key for item in (await store.list(prefix)).items]
            nodes = [
                etcd_codec.decode_allocation(item.value)
                for item in (await store.list(etcd_codec.ALLOCATIONS)).items
            ]
            return found + [str(held) for node in nodes for held in node.replicas]

    assert all(item["state"] in ENDED for item in sessions.values())
    with suppress(AssertionError):
        wait_for(lambda: not asyncio.run(listed_keys()), what="no keys")
    return asyncio.run(listed_keys())


def check_nothing_left(platform: Platform, witnesses: Witnesses) -> Iterator[str]:
    """What stays behind of sessions that have ended."""
    with suppress(AssertionError):
        wait_for(lambda: not witnesses.folders_left(), what="no folders")
    for folder in witnesses.folders_left():
        yield f"replica folder {folder} is left"
    with suppress(AssertionError):
        wait_for(lambda: not witnesses.left_processes(), what="no processes")
    for pid in witnesses.left_processes():
        yield f"process {pid} is left"
    for item in platform.json("gpustat")["items"]:
        if item["allocated"] or item["sessions"]:
            yield f"device is held: {item}"


def check(platform: Platform, witnesses: Witnesses, stream: Stream) -> list[str]:
    """Everything that is wrong, once all faults are healed and nothing is submitted any more."""
    sessions = settle(platform, stream)
    wrong = list(check_ends(stream, sessions))
    shares = {item["id"]: int(1000 * (item["gpus"] % 1 or 1)) for item in sessions.values()}
    wrong += check_devices(witnesses, shares)
    with ThreadPoolExecutor(4) as pool:
        checked = [
            pool.submit(
                lambda one: list(check_streams(platform, witnesses, *one)), (name, item["id"])
            )
            for name, item in sessions.items()
        ]
        wrong += [text for one in checked for text in one.result()]
    wrong += check_nothing_left(platform, witnesses)
    wrong += [f"etcd holds {key}" for key in keys_left(platform, sessions)]
    return wrong
