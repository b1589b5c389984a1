"""A cluster that never was, for `nsml-tui --demo` and pictures: users, sessions and figures are made up.

It is a story like a recording. What happens is played through once from a seed, session by session, and all
else follows from the moment: at the same one the same is shown.
"""

from __future__ import annotations

import heapq
import math
import random
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nsml._version import VERSION
from nsml.v1 import datasets_pb2, nodes_pb2, projects_pb2, resources_pb2
from nsml.v1 import sessions_pb2 as pb
from nsml.view.series import Axis, gather
from nsml.view.units import counted
from tui import demo_tabs
from tui.model import (
    CheckpointsHeard,
    ClusterHeard,
    ContentHeard,
    DatasetsHeard,
    EndedHeard,
    ExplanationHeard,
    FileHeard,
    FilesHeard,
    LogHeard,
    MediaHeard,
    NodesHeard,
    ProjectHeard,
    ProjectsHeard,
    QueueHeard,
    Refused,
    SeriesHeard,
    SessionsHeard,
    TelemetryHeard,
    TreeHeard,
)
from tui.sources import OF_TABS, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nsml.view.series import Series
    from tui.model import ChartWish, DetailHeard, Event

SEED: Final = 2022
BEFORE_S: Final = 6 * 3_600.0
"""How much of it was before the moment at which it begins to be shown."""
AFTER_S: Final = 24 * 3_600.0
HEARD_EVERY_S: Final = 2.0
MOST_ENDED: Final = 16
TAIL_LINES: Final = 1_000
NODES: Final = ("alder", "birch", "cedar", "elm", "fir")
GPUS: Final = 8
GPU_MEMORY: Final = 80 * 1024**3
CORES: Final = 128
NODE_MEMORY: Final = 1024 * 1024**3
PREPARED_S: Final = 40.0
SAVED_S: Final = 25.0
_USERS: Final = ("ada", "bo", "cleo", "dev", "eun")
_ARRIVES_EVERY_S: Final = 420.0
_FOR_GOOD: Final = frozenset({Topic.FILES, Topic.FILE, Topic.CONTENT})
_SILENT: Final = (4, 600.0, 780.0)
"""A node that is not heard for a while, from when to when."""
_HELD_S: Final = 4 * 3_600.0
"""For how long one that waits for a person is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a session runs, as far as it shows.

    Attributes:
        args: of its command.
        every_s: between two reports.
        steps: from one report to the next.
        log: what it prints at a report, made from the values of that.
        metrics: by name a function of the share of the way that is done, and how far it scatters.
    """

    dataset: str
    entry: str
    args: str
    every_s: float
    steps: int
    log: str
    metrics: dict[str, tuple[Callable[[float], float], float]]


def _falls(start: float, end: float, speed: float = 6.0) -> Callable[[float], float]:
    return lambda done: end + (start - end) * math.exp(-speed * done)


def _warms_up(peak: float) -> Callable[[float], float]:
    return lambda done: (
        peak * done / 0.05 if done < 0.05 else peak * (1 + math.cos(math.pi * done)) / 2
    )


PROGRAMS: Final = (
    Program(
        dataset="leaves",
        entry="train.py",
        args="--lr 0.1 --batch 512",
        every_s=4.0,
        steps=50,
        log="step {step:>6}  loss {loss:.4f}  acc {val/acc:.4f}",
        metrics={
            "loss": (_falls(4.6, 0.42), 0.09),
            "val/acc": (_falls(0.02, 0.87, 5.0), 0.012),
            "lr": (_warms_up(0.1), 0.0),
        },
    ),
    Program(
        dataset="tales",
        entry="pretrain.py",
        args="--layers 24 --lr 3e-4",
        every_s=6.0,
        steps=10,
        log="step {step:>6} | loss {loss:.4f} | {tokens/s:,.0f} tokens/s | grad {norm:.3f}",
        metrics={
            "loss": (_falls(9.8, 2.9, 9.0), 0.05),
            "norm": (_falls(2.4, 0.31, 12.0), 0.06),
            "tokens/s": (lambda done: 41_000 + 700 * math.sin(40 * done), 400.0),
        },
    ),
    Program(
        dataset="waves",
        entry="denoise.py",
        args="--depth 6 --lr 2e-3",
        every_s=3.0,
        steps=20,
        log="[{step:>6}] loss={loss:.5f} val={val/loss:.5f} snr={snr:.2f}dB",
        metrics={
            "loss": (_falls(0.9, 0.031, 7.0), 0.008),
            "val/loss": (lambda done: 0.045 + 0.9 * math.exp(-7 * done) + 0.06 * done**3, 0.004),
            "snr": (_falls(3.0, 19.5, 4.0), 0.25),
        },
    ),
    Program(
        dataset="maze",
        entry="play.py",
        args="--agents 64",
        every_s=5.0,
        steps=1_000,
        log="{step:>8} steps  return {return:.1f}  entropy {policy/entropy:.3f}",
        metrics={
            "return": (lambda done: 480 / (1 + math.exp(-14 * (done - 0.35))) - 20, 18.0),
            "policy/entropy": (_falls(2.2, 0.35, 3.0), 0.04),
        },
    ),
)


_MIB: Final = 1024**2
DATASETS: Final[
    dict[str, tuple[str, resources_pb2.Visibility, str, int, list[tuple[str, int]]]]
] = {
    "leaves": (
        "bo",
        resources_pb2.VISIBILITY_PUBLIC,
        "1,000 kinds, 224 x 224, test split mended",
        3,
        [
            ("labels.csv", 3 * _MIB),
            ("README.md", 2_210),
            *((f"train/{number:04d}.tar", 131 * _MIB + 7_919 * number) for number in range(160)),
            *((f"test/{number:04d}.tar", 64 * _MIB + 6_007 * number) for number in range(24)),
        ],
    ),
    "tales": (
        "cleo",
        resources_pb2.VISIBILITY_TEAM,
        "books and letters, deduplicated",
        11,
        [
            ("tokenizer.json", 2 * _MIB),
            *((f"shards/{number:05d}.bin", 512 * _MIB) for number in range(96)),
            ("held-out/00000.bin", 512 * _MIB),
        ],
    ),
    "waves": (
        "eun",
        resources_pb2.VISIBILITY_TEAM,
        "",
        26,
        [
            (f"{split}/{number:03d}.wav", 18 * _MIB)
            for split in ("noisy", "clean")
            for number in range(400)
        ],
    ),
    "maze": (
        "dev",
        resources_pb2.VISIBILITY_TEAM,
        "levels of the third season",
        1,
        [(f"levels/{number:02d}.json", 40_960 + number) for number in range(60)],
    ),
    "petals": ("ada", resources_pb2.VISIBILITY_PRIVATE, "a first try", 5, [("petals.csv", 4_310)]),
}
"""By name: who owns it and sees it, what is said of it, how many days old it is, and its files."""
PROJECTS: Final = {
    "brook": (("dev", "eun"), 24, 4_000.0),
    "grove": (("ada", "bo", "cleo"), 32, 12_000.0),
}
"""By name: its members, the first of which owns it, GPUs at once, and GPU-hours in a period."""


@dataclass(slots=True, kw_only=True)
class Part:
    """One session of the story. Moments in seconds from the moment at which it begins to be shown.

    Attributes:
        runs_s: how long its program does.
        outcome: how it ends.
        idle_from: when it makes no use of its devices any more; None: it always does.
        pause: the times in which it waits for its user.
    """

    number: int
    user: str
    program: Program
    gpus: int
    created: float
    runs_s: float
    outcome: pb.SessionState
    replicas: int = 1
    priority: pb.Priority = pb.PRIORITY_NORMAL
    memo: str = ""
    prepared_s: float = PREPARED_S
    stopping_s: float = 0.0
    saved_s: float = SAVED_S
    idle_from: float | None = None
    pause: tuple[float, float] | None = None
    placed: float = math.inf
    places: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Opaque, as ids are."""
        return f"demo{self.number:012d}"

    @property
    def name(self) -> str:
        """As users name it."""
        return f"{self.user}/{self.program.dataset}/{self.number}"

    @property
    def started(self) -> float:
        """When its program begins to run."""
        return self.placed + self.prepared_s

    @property
    def stopped(self) -> float:
        """When its program has ended, and its devices are free."""
        return self.started + self.runs_s + self.stopping_s

    @property
    def ended(self) -> float:
        """When what it left is safe."""
        return self.stopped + self.saved_s

    @property
    def gone(self) -> float:
        """When it is among those that have ended."""
        is_held = self.outcome == pb.SESSION_STATE_HELD
        return self.ended + (_HELD_S if is_held else 0.0)

    def ran_s(self, at: float) -> float:
        """How long its program has run by then."""
        return min(max(at - self.started, 0.0), self.runs_s)

    def reports(self, at: float) -> int:
        """How many it has made."""
        has_run = at >= self.started and self.outcome != pb.SESSION_STATE_HELD
        return 0 if not has_run else int(self.ran_s(at) / self.program.every_s) + 1

    def value(self, metric: str, number: int) -> float:
        """What it reported of a metric at the report of a number."""
        curve, scatter = self.program.metrics[metric]
        done = number * self.program.every_s / max(self.runs_s, 1.0)
        return curve(min(done, 1.0)) + scatter * self._noise(metric, number)

    def mean(self, metric: str, first: float, last: float) -> float:
        """The same between two reports, on average."""
        curve, _ = self.program.metrics[metric]
        return curve(min((first + last) / 2 * self.program.every_s / max(self.runs_s, 1.0), 1.0))

    def _noise(self, metric: str, number: int) -> float:
        """From -1 to 1, the same for the same report."""
        mixed = zlib.crc32(f"{self.number} {metric} {number}".encode())
        return mixed / 2**31 - 1


class Demo:
    """A made-up cluster.

    Args:
        origin: when it begins to be shown, Unix seconds; what it shows began `BEFORE_S` earlier.
    """

    platform = "garden"
    user = "ada"
    is_made_up = True

    def __init__(self, origin: float) -> None:
        self.origin = self.opens = origin
        self.begins = origin - 3_600.0
        self.ends = origin + AFTER_S
        self.parts = _played(_written())
        self._by_id = {part.id: part for part in self.parts}

    def heard(self, after: float | None, at: float) -> Iterator[tuple[float, Event]]:
        """All that is known at a moment, told anew every two seconds."""
        if not _is_due(after, at):
            return
        now = at - self.origin
        live = [part for part in self.parts if part.created <= now < part.gone]
        ended = sorted((part for part in self.parts if part.gone <= now), key=_gone)
        waiting = [part for part in live if part.placed > now]
        nodes = [self._node(place, live, now) for place in range(len(NODES))]
        yield at, SessionsHeard([self._session(part, now) for part in live], (), reset=True)
        yield at, EndedHeard([self._session(one, now) for one in reversed(ended[-MOST_ENDED:])])
        yield at, QueueHeard(self._queue(waiting, nodes, now))
        yield at, NodesHeard(nodes)
        yield at, DatasetsHeard(self._datasets())
        yield at, ProjectsHeard([self._project(name, now) for name in PROJECTS])
        yield at, ClusterHeard(self._cluster(live, nodes, now), 0.0)

    def heard_of(
        self,
        topic: Topic,
        names: tuple[str, ...],
        wish: ChartWish,
        after: float | None,
        at: float,
        *,
        what: str = "",
    ) -> Iterator[tuple[float, Event]]:
        """What sessions reported; what one printed, or waits for, or its tabs show; what a dataset or a project holds."""
        parts = [self._by_id[one] for one in names if one in self._by_id]
        now = at - self.origin
        if topic is Topic.CODE:
            if after is None:
                yield at, Refused(topic, "the demo has no code")
        elif topic is Topic.TREE and after is None:
            yield at, TreeHeard(names[0], _files(names[0]))
        elif topic is Topic.PROJECT and _is_due(after, at):
            yield at, ProjectHeard(self._project_shown(names[0], now))
        elif topic is Topic.LOG:
            yield at, self._log(parts[0], None if after is None else after - self.origin, now)
        elif topic is Topic.SERIES and _is_due(after, at):
            yield at, self._series(parts, wish, now)
        elif topic is Topic.EXPLANATION and _is_due(after, at):
            yield at, ExplanationHeard(parts[0].id, self._explanation(parts[0], now))
        elif topic in OF_TABS and _is_due(after, at) and (after is None or topic not in _FOR_GOOD):
            yield at, self._detail(parts[0], topic, what, now)

    def _detail(self, part: Part, topic: Topic, what: str, now: float) -> DetailHeard | Refused:
        """What a tab shows of a session."""
        match topic:
            case Topic.CHECKPOINTS:
                return CheckpointsHeard(part.id, demo_tabs.saved(part, self.origin, now))
            case Topic.TELEMETRY:
                told = demo_tabs.telemetry(part, self.origin, now, what, _figures)
                return TelemetryHeard(part.id, what, told)
            case Topic.FILES:
                return FilesHeard(part.id, demo_tabs.files(part))
            case Topic.FILE:
                return FileHeard(part.id, what, demo_tabs.code(part).get(what, []))
            case Topic.MEDIA:
                return MediaHeard(part.id, demo_tabs.shown(part, self.origin, now))
        data = demo_tabs.content(part, what)
        return ContentHeard(part.id, what, data) if data else Refused(topic, "nobody made that up")

    # Sessions

    def _session(self, part: Part, now: float) -> pb.Session:
        session = pb.Session(
            id=part.id,
            name=part.name,
            owner=part.user,
            project=_project_of(part),
            state=_state(part, now),
            memo=part.memo,
            simulated=True,
        )
        spec = session.spec
        spec.entry, spec.replica_count, spec.priority = (
            part.program.entry,
            part.replicas,
            part.priority,
        )
        spec.args.extend(part.program.args.split())
        spec.resources.CopyFrom(_resources(part.gpus))
        owner = DATASETS[part.program.dataset][0]
        name = part.program.dataset
        spec.datasets.add(name=name if owner == part.user else f"{owner}/{name}", version=1)
        self._stamp(session.created_at, part.created)
        if now < part.placed:
            session.waiting = self._reason(part, now)
            return session
        session.attempt = 1
        for rank, (node, devices) in enumerate(part.places):
            replica = session.replicas.add(rank=rank, node=NODES[node])
            replica.resources.CopyFrom(_resources(part.gpus))
            replica.devices.extend(_device(node, device) for device in devices)
        if now >= part.started:
            self._stamp(session.started_at, part.started)
            self._report(session, part, now)
        if now >= part.started + part.runs_s and part.stopping_s:
            session.stop.cause, session.stop.asked_by = pb.CAUSE_STOP_REQUESTED, part.user
            self._stamp(session.stop.until, part.stopped)
        if now >= part.ended:
            self._stamp(session.ended_at, part.stopped)
            session.ClearField("stop")
            session.end.CopyFrom(_end(part))
        return session

    def _report(self, session: pb.Session, part: Part, now: float) -> None:
        last = part.reports(now) - 1
        if last < 0:
            return
        values = {name: part.value(name, last) for name in part.program.metrics}
        session.summary.update({"step": last * part.program.steps, **values})
        session.summary_names.extend(["step", *values])
        session.checkpoint_count = int(part.ran_s(now) // demo_tabs.SAVES_EVERY_S)
        idle = now if part.idle_from is None else min(part.idle_from, now)
        if idle < now < part.stopped:
            episode = session.episodes.add(
                kind=pb.EPISODE_KIND_IDLE, reason="its GPUs stayed at 0 % and nothing was reported"
            )
            self._stamp(episode.since, idle)

    def _stamp(self, stamp: object, seconds: float) -> None:
        stamp.FromNanoseconds(int((self.origin + seconds) * 1e9))  # type: ignore[attr-defined]

    # Who waits

    def _reason(self, part: Part, now: float) -> str:
        free = [len(devices) for devices in _free(self.parts, now)]
        if part.replicas > 1:
            room = sum(count >= part.gpus for count in free)
            return f"needs {part.replicas} nodes with {part.gpus} GPUs each; {room} of {len(NODES)} have them free"
        needs = f"needs {counted(part.gpus, 'GPU')} on one node"
        if max(free) >= part.gpus:
            return f"{needs}; those that are free are held for a session that waits longer"
        return f"{needs}; the most that are free on one: {max(free)}"

    def _queue(
        self, waiting: Sequence[Part], nodes: Sequence[nodes_pb2.Node], now: float
    ) -> pb.ListQueueResponse:
        free = [len(devices) for devices in _free(self.parts, now)]
        hole = max(free)
        answer = pb.ListQueueResponse(
            queued=len(waiting),
            chosen=len(waiting),
            asked_gpu_thousandths=sum(1000 * part.gpus * part.replicas for part in waiting),
            free_gpu_thousandths=1000 * sum(free),
            largest_hole=hole,
            largest_hole_node=nodes[free.index(hole)].name if hole else "",
        )
        for place, part in enumerate(_in_order(waiting), 1):
            row = answer.sessions.add(
                place=place,
                session=part.name,
                owner=part.user,
                project=_project_of(part),
                replica_count=part.replicas,
                priority=part.priority,
                reason=self._reason(part, now),
            )
            row.resources.CopyFrom(_resources(part.gpus))
            self._stamp(row.created_at, part.created)
            if math.isfinite(part.placed):
                self._stamp(row.expected_start, part.placed)
        return answer

    def _explanation(self, part: Part, now: float) -> pb.ExplainSessionResponse:
        answer = pb.ExplainSessionResponse(session=self._session(part, now))
        waiting = _in_order([one for one in self.parts if one.created <= now < one.placed])
        if part not in waiting:
            return answer
        told = answer.waiting
        told.place, told.queued = waiting.index(part) + 1, len(waiting)
        told.reason, told.short = self._reason(part, now), "GPUs"
        short = sum(len(devices) < part.gpus for devices in _free(self.parts, now))
        if short:
            told.shortages.add(what="GPUs", nodes=short)
        if rest := len(NODES) - short:
            told.shortages.add(what="has room for some of its replicas", nodes=rest)
        holders = sorted(_holding(self.parts, now), key=lambda one: -one.gpus * one.replicas)
        for one in holders[:3]:
            holder = told.holders.add(
                session=one.name,
                owner=one.user,
                held=1000 * one.gpus * one.replicas,
                nodes=len({node for node, _ in one.places}),
            )
            self._stamp(holder.until, one.stopped)
        if math.isfinite(part.placed):
            self._stamp(told.expected_start, part.placed)
        return answer

    # Machines

    def _cluster(
        self, live: Sequence[Part], nodes: Sequence[nodes_pb2.Node], now: float
    ) -> nodes_pb2.GetClusterResponse:
        holding = _holding(live, now)
        answer = nodes_pb2.GetClusterResponse(
            version=VERSION,
            leader="garden-1",
            term=4,
            coordination="etcd",
            nodes_ready=sum(node.state == nodes_pb2.NODE_STATE_READY for node in nodes),
            nodes_total=len(nodes),
            sessions_running=len(holding),
            sessions_queued=sum(part.placed > now for part in live),
            simulated=True,
            answered_by="garden-1",
        )
        for name, hours in (("garden-1", 30), ("garden-2", 29)):
            member = answer.members.add(name=name, version=VERSION, is_leader=name == "garden-1")
            self._stamp(member.started_at, -3_600.0 * hours)
        for node in nodes:
            answer.capacity.cpu_thousandths += node.capacity.cpu_thousandths
            answer.allocated.cpu_thousandths += node.allocated.cpu_thousandths
            answer.capacity.gpu_thousandths += node.capacity.gpu_thousandths
            answer.allocated.gpu_thousandths += node.allocated.gpu_thousandths
        for node in nodes:
            if node.state == nodes_pb2.NODE_STATE_SILENT:
                answer.conditions.add(
                    name=nodes_pb2.CONDITION_NAME_NODES_SILENT,
                    subject=node.name,
                    meaning=f"nothing is heard of {node.name}; what runs there may go on",
                )
        uses = [use for node in nodes for use in node.devices]
        loads = [use.sample.utilization_percent for use in uses]
        answer.load.devices = len(uses)
        answer.load.held = sum(use.allocated_thousandths > 0 for use in uses)
        answer.load.running = sum(load > 0 for load in loads)
        answer.load.busy = sum(load > 80 for load in loads)
        answer.load.utilization_percent = sum(loads) / len(loads)
        answer.load.power_watts = sum(use.sample.power_watts for use in uses)
        return answer

    def _node(self, place: int, live: Sequence[Part], now: float) -> nodes_pb2.Node:
        node = nodes_pb2.Node(
            name=NODES[place],
            state=nodes_pb2.NODE_STATE_READY,
            agent_version=VERSION,
            isolation=resources_pb2.ISOLATION_CONTAINER,
            host=f"{NODES[place]}.garden.example",
            pod="hedge" if place < 3 else "meadow",
        )
        holder: dict[int, Part] = {}
        for part in _holding(live, now):
            for node_at, devices in part.places:
                if node_at == place:
                    holder.update(dict.fromkeys(devices, part))
        node.capacity.gpu_thousandths = 1000 * GPUS
        node.capacity.cpu_thousandths = 1000 * CORES
        node.capacity.memory_bytes = NODE_MEMORY
        held = _resources(len(holder))
        node.allocated.CopyFrom(held)
        node.cpu_percent = 2 + 85 * held.cpu_thousandths / node.capacity.cpu_thousandths
        node.memory_used_bytes = 9 * 1024**3 + int(0.7 * held.memory_bytes)
        self._stamp(node.last_contact_at, now - place * 0.3)
        if _is_silent(place, now):
            node.state = nodes_pb2.NODE_STATE_SILENT
            self._stamp(node.last_contact_at, _SILENT[1])
        for index in range(GPUS):
            node.devices.append(_use(place, index, holder.get(index), now))
        return node

    # What sessions use, and what they count for

    def _datasets(self) -> list[datasets_pb2.Dataset]:
        found = []
        for name, (owner, visibility, message, days, files) in sorted(DATASETS.items()):
            one = datasets_pb2.Dataset(
                name=name,
                owner=owner,
                visibility=visibility,
                version=1 + len(name) % 4,
                digest=_digest(name),
                size_bytes=sum(size for _, size in files),
                file_count=len(files),
                message=message,
            )
            self._stamp(one.updated_at, -86_400.0 * days)
            found.append(one)
        return found

    def _project(self, name: str, now: float) -> projects_pb2.Project:
        members, gpus, hours = PROJECTS[name]
        one = projects_pb2.Project(name=name, member_count=len(members))
        self._stamp(one.created_at, -86_400.0 * 40)
        settings, usage = one.settings, one.usage
        settings.owner, settings.weight, settings.most_priority = members[0], 1.0, pb.PRIORITY_HIGH
        settings.quota.gpu_thousandths = 1000 * gpus
        settings.member_quota.gpu_thousandths = 750 * gpus
        settings.budget.gpu_seconds, settings.budget.period_days = 3_600.0 * hours, 30
        self._stamp(settings.budget.anchor, -86_400.0 * 12)
        self._stamp(usage.since, -86_400.0 * 12)
        self._stamp(usage.until, 86_400.0 * 18)
        own = [part for part in self.parts if _project_of(part) == name]
        for part in _holding(own, now):
            held = _resources(part.gpus * part.replicas)
            usage.gpu_thousandths += held.gpu_thousandths
            usage.cpu_thousandths += held.cpu_thousandths
            usage.memory_bytes += held.memory_bytes
            usage.sessions += 1
        used = sum(
            part.gpus * part.replicas * max(min(now, part.stopped) - part.placed, 0.0)
            for part in own
        )
        usage.gpu_seconds = 0.4 * settings.budget.gpu_seconds + used
        return one

    def _project_shown(self, name: str, now: float) -> projects_pb2.GetProjectResponse:
        answer = projects_pb2.GetProjectResponse(project=self._project(name, now))
        answer.project.members.extend(sorted(PROJECTS[name][0]))
        own = [one for one in _holding(self.parts, now) if _project_of(one) == name]
        held = {user: [one for one in own if one.user == user] for user in PROJECTS[name][0]}
        for user, some in held.items():
            if some:
                gpus = sum(one.gpus * one.replicas for one in some)
                answer.holders.add(user=user, gpu_thousandths=1000 * gpus, sessions=len(some))
        answer.holders.sort(key=lambda one: -one.gpu_thousandths)
        answer.sessions.extend(one.name for one in own)
        return answer

    # One session

    def _series(self, parts: Sequence[Part], wish: ChartWish, now: float) -> SeriesHeard:
        low = -math.inf if wish.low is None else wish.low
        high = math.inf if wish.high is None else wish.high
        groups: dict[str, list[Series]] = {}
        owners: dict[str, list[str]] = {}
        for part in parts:
            columns = [
                (series, low, high)
                for metric in part.program.metrics
                if (series := self._columns(part, metric, wish, part.reports(now))) is not None
            ]
            for name, lines in gather(columns, session=part.name).items():
                groups.setdefault(name, []).extend(lines)
                owners.setdefault(name, []).extend([part.id] * len(lines))
        ids = tuple(part.id for part in parts)
        return SeriesHeard(ids, wish, dict(sorted(groups.items())), owners)

    def _columns(self, part: Part, metric: str, wish: ChartWish, count: int) -> pb.Series | None:
        start, step = self._axis(part, wish.axis)
        first = 0 if wish.low is None else max(math.ceil((wish.low - start) / step), 0)
        last = count - 1
        if wish.high is not None:
            last = min(math.floor((wish.high - start) / step), last)
        if last < first:
            return None
        series = pb.Series(session_id=part.id, name=metric)
        each = max(math.ceil((last - first + 1) / max(wish.width, 1)), 1)
        scatter = part.program.metrics[metric][1]
        for begin in range(first, last + 1, each):
            end = min(begin + each - 1, last)
            values = [part.value(metric, begin), part.value(metric, end)]
            mean = part.mean(metric, begin, end)
            series.x_low.append(start + step * begin)
            series.x_high.append(start + step * end)
            series.time.append(self.origin + part.started + end * part.program.every_s)
            reach = scatter if end - begin > 1 else 0.0
            series.low.append(min(*values, mean - reach))
            series.high.append(max(*values, mean + reach))
            series.mean.append(mean if end > begin else values[0])
            series.last.append(values[-1])
            series.finite.append(end - begin + 1)
            series.odd.append(0)
        return series

    def _axis(self, part: Part, axis: Axis) -> tuple[float, float]:
        """Where its reports begin on an axis, and how far they are apart."""
        if axis is Axis.STEP:
            return 0.0, float(part.program.steps)
        start = 0.0 if axis is Axis.RELATIVE else self.origin + part.started
        return start, part.program.every_s

    def _log(self, part: Part, before: float | None, now: float) -> LogHeard:
        count = part.reports(now)
        first = max(count - TAIL_LINES, 0) if before is None else part.reports(before)
        lines = [_printed(part, number) for number in range(first, count)]
        if before is None and first == 0 and count:
            lines = [*_beginning(part), *lines]
        is_at_end = part.started + part.runs_s <= now
        if is_at_end and (before is None or before < part.started + part.runs_s):
            lines += _farewell(part)
        return LogHeard(part.id, lines, is_anew=before is None)


def _project_of(part: Part) -> str:
    return next(name for name, (members, _, _) in PROJECTS.items() if part.user in members)


def _digest(name: str) -> str:
    return f"{zlib.crc32(name.encode()):08x}" * 8


def _files(digest: str) -> Sequence[tuple[str, int]]:
    return next(files for name, (*_, files) in DATASETS.items() if _digest(name) == digest)


def _is_due(after: float | None, at: float) -> bool:
    """Whether two seconds began since."""
    return after is None or at // HEARD_EVERY_S > after // HEARD_EVERY_S


def _gone(part: Part) -> float:
    return part.gone


def _in_order(waiting: Sequence[Part]) -> list[Part]:
    return sorted(waiting, key=lambda part: (-part.priority, part.created))


def _holding(parts: Sequence[Part], now: float) -> list[Part]:
    return [part for part in parts if part.placed <= now < part.stopped]


def _is_silent(node: int, now: float) -> bool:
    which, begin, end = _SILENT
    return node == which and begin <= now < end


def _free(parts: Sequence[Part], now: float) -> list[set[int]]:
    """Devices of each node that nobody holds."""
    free = [set(range(GPUS)) for _ in NODES]
    for part in _holding(parts, now):
        for node, devices in part.places:
            free[node] -= set(devices)
    return free


def _state(part: Part, now: float) -> pb.SessionState:  # noqa: PLR0911 - a state a line
    if now < part.placed:
        return pb.SESSION_STATE_QUEUED
    if now < part.started:
        return pb.SESSION_STATE_PREPARING
    if now >= part.ended:
        return part.outcome
    if now >= part.stopped:
        return pb.SESSION_STATE_FINALIZING
    if now >= part.started + part.runs_s:
        return pb.SESSION_STATE_STOPPING
    if any(_is_silent(node, now) for node, _ in part.places):
        return pb.SESSION_STATE_UNKNOWN
    if part.pause is not None and part.pause[0] <= now < part.pause[1]:
        return pb.SESSION_STATE_PAUSED
    return pb.SESSION_STATE_RUNNING


def _end(part: Part) -> pb.SessionEnd:
    match part.outcome:
        case pb.SESSION_STATE_SUCCEEDED:
            return pb.SessionEnd(cause=pb.CAUSE_COMPLETED)
        case pb.SESSION_STATE_STOPPED:
            return pb.SessionEnd(cause=pb.CAUSE_STOP_REQUESTED, message=f"stopped by {part.user}")
        case pb.SESSION_STATE_HELD:
            return pb.SessionEnd(
                cause=pb.CAUSE_ENVIRONMENT_FAILED,
                exit_code=1,
                message="pip install failed three times: no version of fern==9 was found",
            )
    return pb.SessionEnd(
        cause=pb.CAUSE_PROGRAM_FAILED, exit_code=1, message="ValueError: loss is nan"
    )


def _resources(gpus: int) -> resources_pb2.Resources:
    return resources_pb2.Resources(
        gpu_thousandths=1000 * gpus, cpu_thousandths=14_000 * gpus, memory_bytes=96 * 1024**3 * gpus
    )


def _device(node: int, index: int) -> resources_pb2.Device:
    return resources_pb2.Device(
        uuid=f"GPU-demo-{node}-{index}",
        index=index,
        model="Acorn A1",
        memory_bytes=GPU_MEMORY,
        simulated=True,
    )


def _use(node: int, index: int, part: Part | None, now: float) -> nodes_pb2.DeviceUse:
    """A device with what it does: of one that nobody holds, nothing."""
    use = nodes_pb2.DeviceUse(
        device=_device(node, index), allocated_thousandths=0 if part is None else 1000
    )
    if part is not None:
        use.sessions.append(part.name)
    figures = _figures(node, index, part, now)
    use.sample.utilization_percent = figures["utilization_percent"]
    use.sample.memory_used_bytes = int(figures["memory_used_bytes"])
    use.sample.power_watts = figures["power_watts"]
    use.sample.temperature_celsius = figures["temperature_celsius"]
    use.sample.clock_mhz = 1_980 if use.sample.utilization_percent else 345
    return use


def _figures(node: int, index: int, part: Part | None, now: float) -> dict[str, float]:
    """What is measured of a device at a moment."""
    load = 0.0
    if part is not None and _state(part, now) == pb.SESSION_STATE_RUNNING:
        # Each device swings around its own load, so that none looks like another.
        own = 78 + (7 * index + 5 * node) % 15
        load = own + 8 * math.sin(now / 9 + index + 2 * node)
        load = 0.0 if part.idle_from is not None and now >= part.idle_from else min(load, 100.0)
    share = 0.0 if part is None else 0.35 + 0.06 * ((part.number + index) % 9)
    return {
        "utilization_percent": load,
        "memory_used_bytes": share * GPU_MEMORY,
        "power_watts": 62 + 5.6 * load,
        "temperature_celsius": 31 + 0.42 * load,
    }


def _printed(part: Part, number: int) -> str:
    values = {name: part.value(name, number) for name in part.program.metrics}
    text = part.program.log.replace("{step", "{0")
    for place, name in enumerate(values, 1):
        text = text.replace(f"{{{name}", f"{{{place}")
    return text.format(number * part.program.steps, *values.values())


def _beginning(part: Part) -> list[str]:
    return [
        f"{part.program.entry}: {part.program.dataset} is at /data/{part.program.dataset}",
        f"{counted(part.gpus * part.replicas, 'GPU')} on {counted(part.replicas, 'node')}: {part.program.args}",
    ]


def _farewell(part: Part) -> list[str]:
    match part.outcome:
        case pb.SESSION_STATE_SUCCEEDED:
            return ["done: saved as 'best'"]
        case pb.SESSION_STATE_STOPPED:
            return ["SIGTERM: saving and leaving"]
    return [
        "Traceback (most recent call last):",
        f'  File "/app/{part.program.entry}", line 88, in <module>',
        '    raise ValueError("loss is nan")',
        "ValueError: loss is nan",
    ]


# What happens


def _written() -> list[Part]:
    """Everybody's plans, by the moment at which they are submitted."""
    chance = random.Random(SEED)  # noqa: S311 - a story, no secret
    plans: list[dict[str, Any]] = list(_SCENE)
    created = -BEFORE_S
    while created < AFTER_S:
        if not _STILL[0] < created < _STILL[1]:
            plans.append(_plan(chance, created))
        created += chance.uniform(0.5, 1.5) * _ARRIVES_EVERY_S
    plans.sort(key=lambda plan: plan["created"])
    return [Part(number=number, **plan) for number, plan in enumerate(plans, 1)]


def _plan(chance: random.Random, created: float) -> dict[str, Any]:
    outcome = chance.choices(
        (pb.SESSION_STATE_SUCCEEDED, pb.SESSION_STATE_FAILED, pb.SESSION_STATE_STOPPED), (8, 2, 1)
    )[0]
    return {
        "created": created,
        "user": chance.choice(_USERS),
        "program": chance.choice(PROGRAMS),
        "gpus": chance.choice((1, 1, 1, 2, 2, 4)),
        "runs_s": 60.0 * chance.randrange(25, 100),
        "outcome": outcome,
        "stopping_s": 12.0 if outcome == pb.SESSION_STATE_STOPPED else 0.0,
    }


_STILL: Final = (-1_500.0, 240.0)
"""Meanwhile nobody but those of the scene submits anything."""
_LEAVES, _TALES, _WAVES, _MAZE = PROGRAMS
_DONE: Final = pb.SESSION_STATE_SUCCEEDED
_SCENE: Final[tuple[dict[str, Any], ...]] = (
    # What is on as it begins to be shown: sessions in all states, and a queue with something to wait for. Those
    # that have places get them at once: nobody else does before.
    {
        "created": -19_000.0,
        "user": "cleo",
        "program": _TALES,
        "gpus": 8,
        "replicas": 2,
        "runs_s": 27_000.0,
        "outcome": _DONE,
        "priority": pb.PRIORITY_HIGH,
        "memo": "24 layers, the whole corpus",
    },
    {
        "created": -6_000.0,
        "user": "dev",
        "program": _MAZE,
        "gpus": 2,
        "runs_s": 16_000.0,
        "outcome": _DONE,
        "idle_from": -2_460.0,
        "memo": "over lunch",
        "places": [(4, (4, 5))],
    },
    {
        "created": -4_200.0,
        "user": "eun",
        "program": _WAVES,
        "gpus": 1,
        "runs_s": 9_000.0,
        "outcome": _DONE,
        "pause": (-700.0, 500.0),
        "memo": "paused to look at it",
        "places": [(4, (0,))],
    },
    {
        "created": -3_000.0,
        "user": "bo",
        "program": _LEAVES,
        "gpus": 1,
        "runs_s": 6.0,
        "outcome": pb.SESSION_STATE_HELD,
        "memo": "with fern 9",
        "places": [(4, (1,))],
    },
    {
        "created": -2_700.0,
        "user": "bo",
        "program": _LEAVES,
        "gpus": 1,
        "runs_s": 2_650.0,
        "outcome": pb.SESSION_STATE_STOPPED,
        "stopping_s": 55.0,
        "memo": "too high a rate",
        "places": [(4, (2,))],
    },
    {
        "created": -2_400.0,
        "user": "eun",
        "program": _WAVES,
        "gpus": 1,
        "runs_s": 2_350.0,
        "outcome": _DONE,
        "saved_s": 45.0,
        "places": [(4, (3,))],
    },
    {
        "created": -2_900.0,
        "user": "ada",
        "program": _LEAVES,
        "gpus": 4,
        "priority": pb.PRIORITY_HIGH,
        "runs_s": 5_900.0,
        "outcome": _DONE,
        "memo": "baseline, warm-up 5 %",
    },
    {
        "created": -1_300.0,
        "user": "bo",
        "program": _TALES,
        "gpus": 8,
        "replicas": 2,
        "runs_s": 7_000.0,
        "outcome": _DONE,
        "memo": "two nodes",
    },
    {
        "created": -900.0,
        "user": "cleo",
        "program": _TALES,
        "gpus": 8,
        "runs_s": 3_000.0,
        "outcome": _DONE,
    },
    {
        "created": -420.0,
        "user": "ada",
        "program": _LEAVES,
        "gpus": 8,
        "runs_s": 2_400.0,
        "outcome": _DONE,
        "priority": pb.PRIORITY_HIGH,
        "memo": "batch 4096",
    },
    {
        "created": -200.0,
        "user": "dev",
        "program": _WAVES,
        "gpus": 8,
        "runs_s": 2_000.0,
        "outcome": _DONE,
        "priority": pb.PRIORITY_LOW,
    },
    {
        "created": -20.0,
        "user": "eun",
        "program": _MAZE,
        "gpus": 1,
        "runs_s": 5_000.0,
        "outcome": _DONE,
        "prepared_s": 90.0,
        "places": [(4, (6,))],
    },
)


def _played(parts: list[Part]) -> list[Part]:
    """Place them as their turn comes and enough is free; none holds what another does."""
    waiting: list[Part] = []
    ends: list[tuple[float, int]] = []
    arrivals = sorted(parts, key=lambda part: part.created)
    free = [set(range(GPUS)) for _ in NODES]
    for part in parts:
        for node, devices in part.places:
            free[node] -= set(devices)
    while arrivals or ends:
        arrives = arrivals[0].created if arrivals else math.inf
        if ends and ends[0][0] <= arrives:
            now, number = heapq.heappop(ends)
            for node, devices in parts[number - 1].places:
                free[node] |= set(devices)
        else:
            now = arrives
            waiting.append(arrivals.pop(0))
        for part in _in_order(waiting):
            places = part.places or _room(part, free)
            if places is None:
                continue
            waiting.remove(part)
            part.placed, part.places = now, places
            for node, devices in places:
                free[node] -= set(devices)
            heapq.heappush(ends, (part.stopped, part.number))
    return parts


def _room(part: Part, free: Sequence[set[int]]) -> list[tuple[int, tuple[int, ...]]] | None:
    """Where it has room: on the nodes that are fullest of those that have it."""
    fits = sorted(
        (len(devices), node) for node, devices in enumerate(free) if len(devices) >= part.gpus
    )
    if len(fits) < part.replicas:
        return None
    return [(node, tuple(sorted(free[node])[: part.gpus])) for _, node in fits[: part.replicas]]
