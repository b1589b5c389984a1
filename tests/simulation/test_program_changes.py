"""Changes of running programs under random delays, restarts and losses: the three real parts against one another.

A simulated gang has the follower of the SDK in each process, the agent's part on each node, and the leader's decisions. Messages
between them are late, doubled or lost, agents and leaders forget what they knew, processes wait too long and go
on. Whatever happens, all processes that made a change made it at one step, and what the session says of it is true.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pytest

from controlplane.domain import program_changes
from controlplane.domain.program_changes import (
    MOST_STEP,
    ChangeKind,
    ChangePhase,
    MemberState,
    ProgramChange,
    Said,
    decide,
    withdrawn,
)
from controlplane.nodes.convert_agents import to_said
from controlplane.sessions.convert import change_message
from nodeagent.replica.program_changes import ReplicaChanges
from nsml import _changes
from nsml._changes import APPLY, READ_BACK, WAIT, Change, Follower
from nsml.spec import knobs
from nsml.v1 import agents_pb2, sessions_pb2

MADE = (MemberState.APPLIED, MemberState.DONE)
Decide = Callable[[ProgramChange, range, list[Said], float], ProgramChange]


@dataclass
class Process:
    """One rank: it steps, and speaks with its agent when it was called, or waits."""

    rank: int
    follower: Follower = field(default_factory=lambda: Follower({}))
    step: int = 0
    was_called: bool = False
    may_step: bool = True
    applied: dict[int, int] = field(default_factory=dict)
    lr: float = 0.01

    def act(self, now: float) -> None:
        """Do what there is to do at this point of the program."""
        follower = self.follower
        while todo := follower.todo:
            if todo == WAIT:
                follower.waits()
                break
            if todo == READ_BACK:
                old_new = follower.unread.values if follower.unread else {}
                follower.read_back({name: [*two, two[1]] for name, two in old_new.items()}, "")
                continue
            assert todo == APPLY
            assert follower.change is not None
            change = follower.change
            assert change.number not in self.applied, "made twice"
            self.applied[change.number] = self.step
            before, self.lr = self.lr, change.values["lr"]
            follower.applied({"lr": [before, self.lr]}, now)
        self.may_step = follower.todo != WAIT


@dataclass
class World:
    """A gang on as many nodes as ranks, and a leader."""

    rng: random.Random
    decide: Decide
    size: int = 4
    now: float = 0.0
    change: ProgramChange | None = None
    over: list[ProgramChange] = field(default_factory=list)
    said: dict[int, list[Said]] = field(default_factory=dict)
    in_flight: list[tuple[int, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.processes = [Process(rank) for rank in range(self.size)]
        self.agents = [self._agent(rank) for rank in range(self.size)]

    def _agent(self, rank: int) -> ReplicaChanges:
        def call() -> None:
            self.processes[rank].was_called = True

        return ReplicaChanges(tell=lambda: None, call=call)

    # What happens.

    def go(self) -> None:
        """One thing, at random."""
        self.now += self.rng.choice((0.001, 0.01, 0.05))
        rank = self.rng.randrange(self.size)
        match self.rng.choices(
            ("step", "speak", "orders", "report", "decide", "again", "agent", "leader", "tired"),
            weights=(40, 20, 14, 14, 14, 6, 0.5, 0.5, 0.1),
        )[0]:
            case "step":
                self.step(self.processes[rank])
            case "speak":
                self.speak(self.processes[rank])
            case (
                "orders"
            ):  # of now, or of a moment ago, never again older ones: streams are in order
                wanted = None if self.change is None else change_message(self.change)
                self.agents[rank].want(wanted)
            case "report" if self.agents[rank].members:
                report = agents_pb2.ChangeReport(
                    replica=agents_pb2.ReplicaId(session_id="s", attempt=1, rank=rank),
                    members=self.agents[rank].members,
                )
                self.in_flight.append((rank, to_said(report)))
            case "decide":
                self.lead()
            case "again":
                if not self.agents[rank].is_settled:
                    self.processes[rank].was_called = True
            case "agent":  # killed: all that it knew is gone
                self.agents[rank] = self._agent(rank)
            case "leader":
                self.said.clear()
                self.in_flight.clear()
            case "tired":
                follower = self.processes[rank].follower
                if follower.todo == WAIT:
                    follower.gave_up("nobody decided")
                    self.processes[rank].may_step = True

    def step(self, process: Process) -> None:
        """The next step of a gang in lockstep: nobody is more than one ahead."""
        slowest = min(one.step for one in self.processes)
        if not process.may_step or process.step > slowest:
            return
        process.step += 1
        process.follower.tick("step", process.step, self.now)
        process.act(self.now)

    def speak(self, process: Process) -> None:
        """Say and hear, as at a safe point of the step where it is."""
        if not process.was_called and process.may_step:
            return
        agent, follower = self.agents[process.rank], process.follower
        process.was_called = False
        about = {
            "process": f"{process.rank}",
            "local_rank": 0,
            "local_world_size": 1,
            **follower.report(),
        }
        agent.hear(about)
        if agent.is_known and self.rng.random() < 0.9:  # or the answer is lost
            raw = agent.wanted
            follower.hear(None if raw is None else Change(dict(raw)), self.now, lambda _: "")
            process.act(self.now)
            agent.hear({**about, **follower.report()})

    def lead(self) -> None:
        """Take in what came, decide, and begin the next change where none is open."""
        while self.in_flight and self.rng.random() < 0.8:
            rank, said = self.in_flight.pop(0)
            self.said[rank] = said
        if self.change is None:
            number = len(self.over) + 1
            self.change = ProgramChange(
                number=number,
                kind=ChangeKind.SET,
                attempt=1,
                asked_by="kim",
                asked_at=self.now,
                values=MappingProxyType({"lr": str(number)}),
                wait_s=1e9,
                since=self.now,
            )
            return
        known = [one for rank in sorted(self.said) for one in self.said[rank]]
        self.change = self.decide(self.change, range(self.size), known, self.now)
        if not self.change.phase.is_open:
            self.over.append(self.change)
            self.change = None

    # What must hold.

    def check(self) -> None:
        """All that made a change made it where it was to be made; what is said of it is true."""
        for process in self.processes:
            for number, step in process.applied.items():
                change = self.of(number)
                assert change is not None, number
                assert step == change.at, f"{number} at {step}"
        for change in self.over:
            made = {one.rank for one in self.processes if change.number in one.applied}
            if change.phase is ChangePhase.APPLIED:
                assert made == set(range(self.size)), f"{change} made by {made} alone"
            elif change.phase is ChangePhase.WITHDRAWN:
                assert not made, f"{change} was made by {made}"
            else:
                said = {one.rank for one in change.members if one.state in MADE}
                assert said == made, f"{change} was made by {made}"

    def of(self, number: int) -> ProgramChange | None:
        """The change with this number."""
        return next(
            (one for one in (*self.over, self.change) if one and one.number == number), None
        )


def run(seed: int, how: Decide, things: int = 6_000) -> World:
    world = World(random.Random(seed), how)
    for _ in range(things):
        world.go()
        world.check()
    return world


@pytest.mark.parametrize("seed", range(40))
def test_all_processes_make_a_change_at_one_step(seed: int) -> None:
    print(f"seed {seed}")
    world = run(seed, decide)
    made = [one for one in world.over if one.phase is ChangePhase.APPLIED]
    assert len(made) >= 2, "changes are made, too"
    if all(one.phase is not ChangePhase.DIVIDED for one in world.over) and world.change is None:
        assert len({one.lr for one in world.processes}) == 1


def without_waiting_for_all(
    change: ProgramChange, ranks: range, said: list[Said], now: float
) -> ProgramChange:
    """The mutant that takes the next change while some processes may not have heard that the last one is decided."""
    if change.phase is ChangePhase.COMMIT:
        return replace(change, phase=ChangePhase.APPLIED, ended_at=now)
    return decide(change, ranks, said, now)


def without_a_promise(
    change: ProgramChange, ranks: range, said: list[Said], now: float
) -> ProgramChange:
    """The mutant that decides as soon as a step is chosen."""
    if change.phase is ChangePhase.PREPARE:
        return replace(change, phase=ChangePhase.COMMIT, since=now)
    return decide(change, ranks, said, now)


def forgetting_commits(
    change: ProgramChange, ranks: range, said: list[Said], now: float
) -> ProgramChange:
    """The mutant that withdraws what is decided, as if nobody had made it yet."""
    if change.phase is ChangePhase.COMMIT and now % 1 < 0.2:
        return withdrawn(change, "no", now)
    return decide(change, ranks, said, now)


@pytest.mark.parametrize("mutant", [without_waiting_for_all, forgetting_commits])
def test_mutants_are_caught(mutant: Decide) -> None:
    caught = 0
    for seed in range(10):
        try:
            run(seed, mutant)
        except AssertionError:
            caught += 1
    assert caught >= 8


def test_a_step_that_nobody_promised_to_wait_for_divides_gangs() -> None:
    """And is said to have done so: processes that come too late say that they missed it."""
    over = [one for seed in range(10) for one in run(seed, without_a_promise).over]
    assert any(one.phase is ChangePhase.DIVIDED for one in over)


def test_what_is_sent_to_agents_is_what_programs_understand() -> None:
    change = ProgramChange(
        number=3,
        kind=ChangeKind.PAUSE,
        attempt=1,
        asked_by="kim",
        asked_at=1.0,
        limit_s=60.0,
        counter="step",
        at=5,
        phase=ChangePhase.PREPARE,
    )
    agent = ReplicaChanges(tell=lambda: None)
    agent.want(change_message(change))
    assert agent.wanted is not None
    heard = Change(dict(agent.wanted))
    assert (heard.number, heard.kind, heard.place, heard.limit_s, heard.by) == (
        3,
        "pause",
        ("step", 5),
        60.0,
        "kim",
    )
    agent.want(None)
    assert agent.wanted is None
    assert change_message(change).kind == sessions_pb2.PROGRAM_CHANGE_KIND_PAUSE


def test_all_parts_count_by_the_same_counters() -> None:
    """The core and what users import name them by themselves: neither may import the other's."""
    assert program_changes.COUNTERS == _changes.COUNTERS == knobs.COUNTERS


@pytest.mark.parametrize("last", [3, MOST_STEP])
@pytest.mark.parametrize("step_s", [5e-324, 1e-300, 1e-12, 0.1, 1e300])
def test_whatever_a_program_says_of_its_steps_the_leader_decides(last: int, step_s: float) -> None:
    change = ProgramChange(number=1, kind=ChangeKind.SET, attempt=1, asked_by="kim", asked_at=0.0)
    asked = Said(
        rank=0,
        local_rank=0,
        number=1,
        state=MemberState.ASKED,
        counters={"step": last},
        step_s={"step": step_s},
    )
    assert MOST_STEP == knobs.MOST_STEP
    while change.phase.is_open:
        change = decide(change, [0], [asked], 1.0)
        if change.at is not None:
            assert 0 < change.at <= MOST_STEP
            change_message(change)  # what is written has 64 bits
            asked = replace(asked, state=MemberState.LATE, point=change.point)
    assert change.phase is ChangePhase.WITHDRAWN
    assert "far enough ahead" in change.reason
