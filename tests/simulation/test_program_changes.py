"""Changes of running programs under random delays, restarts and losses: the three real parts against one another.

A simulated gang has the follower and the knobs of the SDK in each process, the agent's part on each node, and the leader's
decisions. Messages between them are late, doubled or lost, agents and leaders forget what they knew, processes wait too
long and go on, and launchers start them anew at an earlier step. Whatever happens, all processes that made a change made it
at one step, what the session says of it is true, and who is started anew has what is in force.
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
    made_in,
    withdrawn,
)
from controlplane.nodes.convert_agents import to_said
from controlplane.sessions.convert import change_message
from nodeagent.replica.program_changes import ReplicaChanges, Wanted
from nsml import _changes
from nsml._changes import APPLY, READ_BACK, WAIT, Change, Follower
from nsml._knobs import Knobs
from nsml._presets import parse_presets
from nsml.spec import knobs
from nsml.v1 import agents_pb2, sessions_pb2

MADE = (MemberState.APPLIED, MemberState.DONE)
Decide = Callable[[ProgramChange, range, list[Said], float], ProgramChange]


@dataclass
class Process:
    """One life of a rank: it steps, and speaks with its agent when it was called, or waits."""

    rank: int
    begins_at: int = 0
    is_anew: bool = False
    follower: Follower = field(default_factory=lambda: Follower({}))
    step: int = 0
    was_called: bool = False
    may_step: bool = True
    applied: dict[int, int] = field(default_factory=dict)
    knows: dict[int, int] = field(default_factory=dict)
    """From which step on it could make a change: where it was when it learned that it is decided."""
    missed: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    """What its agent knew to be over when they spoke last."""

    def __post_init__(self) -> None:
        self.step = self.begins_at
        self.knobs = Knobs([], lambda _: None)
        self.lr = self.knobs.declare("lr", (0, None, None, None))

    def due(self, changes: list[ProgramChange]) -> int:
        """The value that it should have at least: of what its agent knew to be over that of the last step."""
        over = {one.number: one.at or 0 for one in changes if one.number in self.told - self.missed}
        reached = [(at, number) for number, at in over.items() if self.step >= at]
        return max(reached, default=(0, 0))[1] if self.follower.positions else 0

    @property
    def next_step(self) -> int:
        """Where it can make something next."""
        return self.step if self.follower.positions else self.step + 1

    def learn(self, number: int) -> None:
        """It knows that a change is decided."""
        self.knows.setdefault(number, self.next_step)

    def read(self, kept: str) -> None:
        """Take in what its agent has written down."""
        presets = parse_presets(kept)
        for one in presets:
            self.learn(one.number)
        after = max(self.knobs.newest, self.follower.last_over)
        self.knobs.take([one for one in presets if one.number > after], self.follower.positions)
        self.note(self.next_step)

    def tick(self, now: float) -> None:
        """Come to the next step."""
        self.step += 1
        self.follower.tick("step", self.step, now)
        self.knobs.advance("step", self.step)
        self.note(self.step)
        self.act(now)

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
            values = change.values
            if follower.begins_with_it:
                values = self.knobs.lacking(values, change.place)
            done = self.knobs.set(values, self.step, change.place, change.number)
            follower.applied(done, now)
            self.applied.setdefault(change.number, self.step)  # also where a later step has another
            self.note(self.step)
        self.may_step = follower.todo != WAIT

    def note(self, step: int) -> None:
        """What was set just now, by the value that each change has of its own: its number."""
        value = self.lr.value
        if value in self.applied:
            return
        if value:
            self.applied[value] = step


@dataclass
class World:
    """A gang on as many nodes as ranks, and a leader; `restarts` is how often a launcher starts some of them anew."""

    rng: random.Random
    decide: Decide
    size: int = 4
    restarts: float = 0.0
    are_kept: bool = True
    """Whether agents write down what was set."""
    reads_again: bool = True
    """Whether processes look at that when they were called, and not only when they begin."""
    now: float = 0.0
    change: ProgramChange | None = None
    over: list[ProgramChange] = field(default_factory=list)
    said: dict[int, list[Said]] = field(default_factory=dict)
    in_flight: list[tuple[int, Any]] = field(default_factory=list)
    ended: list[Process] = field(default_factory=list)
    had_made: dict[int, set[int]] = field(default_factory=dict)
    """The ranks that had made a change when it was over."""

    def __post_init__(self) -> None:
        self.processes = [Process(rank) for rank in range(self.size)]
        self.kept = self.size * ["[]"]
        self.agents = [self._agent(rank) for rank in range(self.size)]
        self.told: list[set[int]] = [set() for _ in range(self.size)]

    def _agent(self, rank: int) -> ReplicaChanges:
        def call() -> None:
            self.processes[rank].was_called = True

        def keep(text: str) -> None:
            if self.are_kept:
                self.kept[rank] = text

        return ReplicaChanges(tell=lambda: None, call=call, keep=keep)

    # What happens.

    def go(self) -> None:
        """One thing, at random."""
        self.now += self.rng.choice((0.001, 0.01, 0.05))
        rank = self.rng.randrange(self.size)
        match self.rng.choices(
            (
                *("step", "speak", "orders", "report", "decide", "again"),
                *("agent", "leader", "tired", "restart"),
            ),
            weights=(40, 20, 14, 14, 14, 6, 0.5, 0.5, 0.1, self.restarts),
        )[0]:
            case "step":
                self.step(self.processes[rank])
            case "speak":
                self.speak(self.processes[rank])
            case "orders":
                self.order(rank)
            case "report" if self.agents[rank].members:
                self.report(rank)
            case "decide":
                self.lead()
            case "again":
                self.agents[rank].note_ended()
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
                    self.processes[rank].missed.add(
                        follower.change.number if follower.change else 0
                    )
                    follower.gave_up("nobody decided")
                    self.processes[rank].may_step = True
            case "restart":
                self.restart([rank] if self.rng.random() < 0.3 else list(range(self.size)))

    def restart(self, ranks: list[int]) -> None:
        """Some end, and begin anew where their checkpoint was saved."""
        saved = max(min(one.step for one in self.processes) - self.rng.randrange(20), 0)
        for rank in ranks:
            self.ended.append(self.processes[rank])
            self.processes[rank] = Process(rank, saved, is_anew=True, was_called=True)
            self.processes[rank].read(self.kept[rank])

    def order(self, rank: int) -> None:
        """Orders of now come to an agent, never again older ones: streams are in order."""
        self.told[rank] = {one.number for one in made_in(self.over, 1)}
        self.agents[rank].want(
            Wanted(
                change=None if self.change is None else change_message(self.change),
                made=[change_message(one) for one in made_in(self.over, 1)],
            )
        )

    def report(self, rank: int) -> None:
        """An agent sends what its processes say."""
        report = agents_pb2.ChangeReport(
            replica=agents_pb2.ReplicaId(session_id="s", attempt=1, rank=rank),
            members=self.agents[rank].members,
        )
        self.in_flight.append((rank, to_said(report)))

    def step(self, process: Process) -> None:
        """The next step of a gang in lockstep: nobody is more than one ahead."""
        slowest = min(one.step for one in self.processes)
        if process.may_step and process.step <= slowest:
            process.tick(self.now)

    def speak(self, process: Process, loses: float = 0.1) -> None:
        """Say and hear, as at a safe point of the step where it is."""
        if not process.was_called and process.may_step:
            return
        agent, follower = self.agents[process.rank], process.follower
        about = {
            "process": f"{id(process)}",
            "local_rank": 0,
            "local_world_size": 1,
            **follower.report(),
        }

        def is_there() -> bool:
            return self.processes[process.rank] is process

        agent.hear(about, is_there)
        process.was_called = not agent.is_known  # a program that could not ask tries again
        if agent.is_known and self.rng.random() >= loses:
            if self.reads_again:
                process.read(self.kept[process.rank])
            raw = agent.wanted
            change = None if raw is None else Change(dict(raw))
            if change is not None and change.phase == "commit":
                process.learn(change.number)
            follower.hear(change, self.now, lambda _: "")
            if change is not None and (follower.known() or {}).get("is") == "missed":
                process.missed.add(change.number)
            process.act(self.now)
            process.told = self.told[process.rank]
            agent.hear({**about, **follower.report()}, is_there)

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
            self.had_made[self.change.number] = self.made(self.change.number)
            self.over.append(self.change)
            self.change = None

    def settle(self) -> None:
        """Nothing is lost, late or asked for any more, until all processes are beyond the steps of all changes."""
        last = max([0, *(one.at or 0 for one in (*self.over, self.change) if one)])
        while min(one.step for one in self.processes) <= last or self.change is not None:
            self.now += 0.05
            for rank, process in enumerate(self.processes):
                self.order(rank)
                process.was_called = True
                self.speak(process, loses=0)
                self.step(process)
                self.report(rank)
            if self.change is not None:
                self.lead()
            self.check()
        for rank, process in enumerate(self.processes):
            self.order(rank)
            process.was_called = True
            self.speak(process, loses=0)

    # What must hold.

    def made(self, number: int) -> set[int]:
        """The ranks of which some process made a change."""
        lives = (*self.ended, *self.processes)
        return {one.rank for one in lives if number in one.applied}

    def check(self) -> None:
        """All that made a change made it where it was to be made; what is said of it is true."""
        for process in self.processes:
            for number, step in process.applied.items():
                change = self.of(number)
                assert change is not None, number
                assert change.at is not None
                begins = process.knows[number] if process.is_anew else 0
                assert step == max(change.at, begins), f"{number} at {step}"
            has, due = process.lr.value, process.due(self.over)
            assert self.at(has) >= self.at(due), f"{process} has {has}, and {due} is in force"
        for change in self.over:
            made = self.had_made[change.number]
            if change.phase is ChangePhase.APPLIED:
                assert made == set(range(self.size)), f"{change} made by {made} alone"
            elif change.phase is ChangePhase.WITHDRAWN:
                assert not self.made(change.number), f"{change} was made by {made}"
            else:
                said = {one.rank for one in change.members if one.state in MADE}
                assert said <= made, f"{change} was made by {made}"
                assert said == made or self.ended, f"{change} was made by {made}"

    def at(self, number: int) -> tuple[int, int]:
        """By which of two values the other one is replaced: step and number of the change."""
        change = self.of(number)
        return (0 if change is None else change.at or 0, number)

    def of(self, number: int) -> ProgramChange | None:
        """The change with this number."""
        return next(
            (one for one in (*self.over, self.change) if one and one.number == number), None
        )


def run(seed: int, how: Decide, things: int = 6_000, **world: Any) -> World:
    made = World(random.Random(seed), how, **world)
    for _ in range(things):
        made.go()
        made.check()
    return made


@pytest.mark.parametrize("seed", range(40))
def test_all_processes_make_a_change_at_one_step(seed: int) -> None:
    print(f"seed {seed}")
    world = run(seed, decide)
    made = [one for one in world.over if one.phase is ChangePhase.APPLIED]
    assert len(made) >= 2, "changes are made, too"
    if all(one.phase is not ChangePhase.DIVIDED for one in world.over) and world.change is None:
        assert len({one.lr.value for one in world.processes}) == 1


def restarts(seed: int, **how: Any) -> None:
    """Each process has what was set at the last step, unless it has said that it goes on without."""
    world = run(seed, decide, 3_000, restarts=0.3, **how)
    world.settle()


@pytest.mark.parametrize("seed", range(40))
def test_who_is_started_anew_has_what_is_in_force(seed: int) -> None:
    print(f"seed {seed}")
    restarts(seed)


@pytest.mark.parametrize("mutant", ["are_kept", "reads_again"])
def test_who_is_started_anew_needs_all_that_was_set(mutant: str) -> None:
    def until_caught() -> None:
        for seed in range(100):
            restarts(seed, **{mutant: False})

    with pytest.raises(AssertionError, match="is in force"):
        until_caught()


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
    agent.want(Wanted(change=change_message(change)))
    assert agent.wanted is not None
    heard = Change(dict(agent.wanted))
    assert (heard.number, heard.kind, heard.place, heard.limit_s, heard.by) == (
        3,
        "pause",
        ("step", 5),
        60.0,
        "kim",
    )
    agent.want(Wanted())
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
