"""Random histories of a whole cluster: who gives way, how often, and that it comes to rest.

The index is told of all that happens as the loop tells it; sessions that give way save, are queued again,
and go on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, note, settings
from hypothesis import strategies as st

from controlplane.domain.changes import (
    AllocationChanged,
    NodeChanged,
    SessionChanged,
    SessionRemoved,
)
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.plan import Placement, Plan, Preemption
from controlplane.domain.values import (
    AllocatedReplica,
    Allocation,
    Cause,
    EndedAttempt,
    Priority,
    Progress,
    Replica,
    Session,
    Stop,
)
from controlplane.scheduler import Cluster, ClusterIndex, QueueQueries
from controlplane.scheduler.preemption_policy import (
    IDLE_LEAST_RUN_S,
    LEAST_RUN_S,
    MIN_RUN_S,
    InClass,
    Rules,
)
from controlplane.scheduler.session_rank import LEAST_PATIENCE_S
from tests.support.examples import examples
from tests.unit.controlplane.builders import node, session
from tests.unit.controlplane.scheduler.test_schedule import NOW

STEP_S = 120.0
SAVES_IN_S = 30.0
HOURS = 12
WIDTH = 4
EASE = 1e-3


class Wish:
    """A session of a history, and what it really needs."""

    def __init__(self, one: Session, needs_s: float, saves_every_s: float) -> None:
        self.id = one.id
        self.left_s = needs_s
        self.saves_every_s = saves_every_s


class History:
    """A cluster in which sessions come, run, give way, go on and end, on a virtual clock."""

    def __init__(self, rules: Rules, nodes: int) -> None:
        self.index = ClusterIndex(Cluster(rules))
        self.now = NOW
        self.sessions: dict[str, Session] = {}
        self.wishes: dict[str, Wish] = {}
        self.allocations = {f"n{i}": Allocation(node=f"n{i}") for i in range(nodes)}
        self.index.apply([NodeChanged(node=node(name, WIDTH)) for name in self.allocations])
        self.gave_way: list[tuple[float, Session, Session, Preemption]] = []
        self.moved: list[tuple[float, Session, Session]] = []
        self.plans: list[Plan] = []
        self.leaves_at: dict[str, float] = {}

    def submit(self, one: Session, needs_s: float, saves_every_s: float) -> None:
        self.sessions[one.id] = one
        self.wishes[one.id] = Wish(one, needs_s, saves_every_s)
        self._tell(one)

    def _tell(self, one: Session) -> None:
        self.sessions[one.id] = one
        self.index.apply([SessionChanged(session=one)])

    def _since(self, session_id: str) -> float:
        return min(
            replica.placed_at
            for allocation in self.allocations.values()
            for replica in allocation.replicas
            if replica.session_id == session_id
        )

    def pass_(self) -> int:
        """Plan until nothing more comes of it; how many plans that took."""
        for count in range(50):
            plan = self.index.plan(self.now)
            self.plans.append(plan)
            for preemption in plan.preemptions:
                self._leave(preemption)
            for placement in plan.placements:
                self._place(placement)
            self.index.settle(plan, set())
            self._check_capacity()
            if not plan.placements and not plan.preemptions:
                return count
        raise AssertionError("never at rest within one instant")

    def _leave(self, preemption: Preemption) -> None:
        gone, comes = self.sessions[preemption.session_id], self.sessions[preemption.for_session_id]
        assert gone.state is SessionState.RUNNING
        assert gone.attempt == preemption.attempt
        assert comes.state is SessionState.QUEUED
        if preemption.why.startswith("moves to make room for "):
            self.check_move(gone, comes)
            self.moved.append((self.now, gone, comes))
        else:
            self.check(gone, comes)
            self.gave_way.append((self.now, gone, comes, preemption))
        stop = Stop(grace_s=1.0, cause=Cause.PREEMPTED, reason=preemption.why)
        self._tell(replace(gone, state=SessionState.STOPPING, stop=stop))
        self.leaves_at[gone.id] = self.now + SAVES_IN_S

    def check(self, gone: Session, comes: Session) -> None:
        rules, ran_s = self.index.cluster.rules, self.now - self._since(gone.id) + EASE
        assert gone.progress.is_resumable or gone.spec.may_be_preempted
        if gone.spec.priority < comes.spec.priority:
            is_idle = gone.spec.priority is Priority.IDLE
            assert ran_s >= (IDLE_LEAST_RUN_S if is_idle else LEAST_RUN_S)
            return
        assert gone.spec.priority == comes.spec.priority
        assert rules.in_class is not InClass.NOBODY
        assert gone.progress.can_go_on
        assert ran_s >= MIN_RUN_S
        if gone.owner == comes.owner:
            is_due = self.now - comes.created_at >= LEAST_PATIENCE_S
            assert is_due or comes.spec.time_limit_s or rules.in_class is InClass.SERVICE

    def check_move(self, gone: Session, comes: Session) -> None:
        rules, ran_s = self.index.cluster.rules, self.now - self._since(gone.id) + EASE
        assert rules.moves
        assert gone.progress.is_resumable
        assert gone.spec.priority <= comes.spec.priority
        is_lower = gone.spec.priority < comes.spec.priority
        assert ran_s >= (
            rules.least_run_of(gone.spec.priority) if is_lower else rules.least_run_in_class_s
        )
        assert comes.spec.replica_count > 1 or comes.spec.resources.gpu_thousandths > 1000
        place = self.index.cluster.moves.get(gone.id)
        assert place is not None
        assert {one.node for one in gone.replicas}.isdisjoint(place.nodes)

    def _place(self, placement: Placement) -> None:
        one = self.sessions[placement.session_id]
        assert one.state is SessionState.QUEUED
        attempt = one.attempt + 1
        for replica in placement.replicas:
            known = self.allocations[replica.node]
            added = AllocatedReplica(
                session_id=one.id,
                attempt=attempt,
                rank=replica.rank,
                devices=replica.devices,
                cpu_thousandths=replica.resources.cpu_thousandths,
                memory_bytes=replica.resources.memory_bytes,
                placed_at=self.now,
            )
            self.allocations[replica.node] = replace(known, replicas=(*known.replicas, added))
            self.index.apply([AllocationChanged(allocation=self.allocations[replica.node])])
        replicas = tuple(
            Replica(rank=r.rank, node=r.node, resources=r.resources) for r in placement.replicas
        )
        self._tell(replace(one, state=SessionState.RUNNING, attempt=attempt, replicas=replicas))

    def _check_capacity(self) -> None:
        for allocation in self.allocations.values():
            assert all(held <= 1000 for held in allocation.held_thousandths().values())

    def run_for(self, seconds: float) -> None:
        """Let time pass: programs advance, save, leave and end."""
        self.now += seconds
        for one in list(self.sessions.values()):
            if one.state is SessionState.RUNNING:
                self._advance(one, seconds)
            elif one.state is SessionState.STOPPING and self.leaves_at[one.id] <= self.now:
                since = self._since(one.id)
                self._free(one.id)
                held_s = self.now - since
                ended = EndedAttempt(
                    number=one.attempt,
                    cause=Cause.PREEMPTED,
                    placed_at=since,
                    ended_at=self.now,
                    gpu_thousandths=one.spec.resources.gpu_thousandths,
                    held_s=held_s,
                )
                again = replace(
                    one,
                    state=SessionState.QUEUED,
                    stop=None,
                    replicas=(),
                    attempts=(*one.attempts, ended),
                )
                self._tell(again)

    def _advance(self, one: Session, seconds: float) -> None:
        wish = self.wishes[one.id]
        wish.left_s -= seconds
        if wish.left_s <= 0:
            self._free(one.id)
            self.sessions.pop(one.id)
            self.index.apply([SessionRemoved(session_id=one.id)])
        elif wish.saves_every_s and self.now - self._since(one.id) >= wish.saves_every_s:
            self._tell(replace(one, progress=Progress(is_resumable=True, saved_at=self.now)))

    def _free(self, session_id: str) -> None:
        for name, known in self.allocations.items():
            left = tuple(one for one in known.replicas if one.session_id != session_id)
            if len(left) < len(known.replicas):
                self.allocations[name] = replace(known, replicas=left)
                self.index.apply([AllocationChanged(allocation=self.allocations[name])])


wishes = st.tuples(
    st.integers(0, 6 * 30),  # when, in steps
    st.sampled_from([1, 1, 1, 2, 4]),  # GPUs of each replica
    st.sampled_from([1, 1, 1, 2]),  # replicas
    st.sampled_from(["kim", "lee", "park"]),
    st.sampled_from([Priority.NORMAL, Priority.NORMAL, Priority.LOW, Priority.HIGH, Priority.IDLE]),
    st.sampled_from([0.0, 3_600.0, 4 * 3_600.0, 24 * 3_600.0]),  # limit
    st.sampled_from([300.0, 3_000.0, 9_000.0, 40_000.0]),  # what it needs
    st.sampled_from([0.0, 60.0, 600.0, 600.0]),  # how often it saves; 0: never
    st.booleans(),  # preemptible
)


@settings(max_examples=examples(120), deadline=None)
@given(
    st.sampled_from(list(InClass)),
    st.integers(1, 3),
    st.lists(wishes, min_size=2, max_size=14),
)
def test_nobody_gives_way_without_ground_and_nothing_goes_in_circles(
    in_class: InClass, nodes: int, asked: list[tuple]
) -> None:
    history = History(Rules(in_class=in_class), nodes)
    coming = sorted(asked, key=lambda one: one[0])
    for number in range(HOURS * 30):
        while coming and coming[0][0] <= number:
            _, gpus, count, owner, priority, limit_s, needs_s, saves_s, preemptible = coming.pop(0)
            spec = {"priority": priority, "time_limit_s": limit_s, "preemptible": preemptible}
            one = session(
                gpus * 1000, count, owner=owner, spec=spec, created_at=history.now, cpu=1000
            )
            history.submit(one, needs_s, saves_s)
        history.pass_()
        history.run_for(STEP_S)
    pairs = Counter((gone.id, comes.id) for _, gone, comes, _ in history.gave_way)
    note(f"gave way: {len(history.gave_way)}")
    for (gone, comes), times in pairs.items():
        back = pairs[comes, gone]
        # Each turn takes as much service again as the one before, or a whole patience: within so few
        # hours few fit in.
        assert times <= 1 + HOURS * 3_600.0 / MIN_RUN_S / 4, (gone, comes)
        if back:
            assert in_class is InClass.SERVICE or HOURS * 3_600.0 > LEAST_PATIENCE_S
    # Each cost an attempt that had run its least.
    by_one = Counter(gone.id for _, gone, _, _ in history.gave_way)
    for count in by_one.values():
        assert count <= HOURS * 3_600.0 / IDLE_LEAST_RUN_S / 2


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(list(InClass)), st.integers(1, 3), st.lists(wishes, min_size=2, max_size=12))
def test_who_only_runs_on_is_stopped_few_times(
    in_class: InClass, nodes: int, asked: list[tuple]
) -> None:
    """Without anybody who comes anew or ends, giving way comes to rest: levels double, shares even out."""
    history = History(Rules(in_class=in_class), nodes)
    for _, gpus, count, owner, priority, limit_s, _, saves_s, preemptible in asked:
        spec = {"priority": priority, "time_limit_s": limit_s, "preemptible": preemptible}
        one = session(gpus * 1000, count, owner=owner, spec=spec, created_at=history.now, cpu=1000)
        history.submit(one, 1e9, saves_s)
    for _ in range(HOURS * 30):
        history.pass_()
        history.run_for(STEP_S)
    # Each of a pair passes the other at most once for each level, and once in each patience.
    levels = 5 + int(HOURS * 3_600.0 / LEAST_PATIENCE_S)
    pairs = Counter((gone.id, comes.id) for _, gone, comes, _ in history.gave_way)
    assert all(times <= levels for times in pairs.values()), pairs
    by_class = {
        (gone.id, comes.id): times
        for (_, gone, comes, _) in history.gave_way
        if gone.spec.priority < comes.spec.priority
        for times in [pairs[gone.id, comes.id]]
    }
    assert all(pairs[comes, gone] == 0 for gone, comes in by_class)


def of(owner: str, limit_h: float, history: History, gpus: int = WIDTH) -> Session:
    spec = {"time_limit_s": limit_h * 3_600.0}
    return session(gpus * 1000, owner=owner, spec=spec, created_at=history.now, cpu=1000)


def pass_hours(history: History, hours: float) -> None:
    for _ in range(round(hours * 30)):
        history.pass_()
        history.run_for(STEP_S)
    history.pass_()


def who(history: History) -> list[tuple[str, str]]:
    return [(gone.id, comes.id) for _, gone, comes, _ in history.gave_way]


def test_sessions_that_are_alike_do_not_take_turns_but_once_in_each_patience() -> None:
    history = History(Rules(), 1)
    for _ in range(2):
        history.submit(of("kim", 24, history), 1e9, 600)
    pass_hours(history, LEAST_PATIENCE_S / 3_600 - 0.1)
    assert not history.gave_way
    pass_hours(history, 20)
    # The backlog is 24 hours for one cluster: half of it is the patience.
    assert 1 <= len(history.gave_way) <= 2


def test_a_short_one_goes_before_a_long_one_of_its_account_after_half_an_hour() -> None:
    history = History(Rules(), 1)
    long, short = of("kim", 24, history), of("kim", 1, history)
    history.submit(long, 9_000, 600)
    history.pass_()
    history.submit(short, 1_200, 0)
    pass_hours(history, 0.45)
    assert not history.gave_way
    pass_hours(history, 0.2)
    assert who(history) == [(long.id, short.id)]
    assert history.gave_way[0][3].why == f"gives way to {short.name}, which needs far less time"
    told = QueueQueries(history.index).explanation(long.id, history.now)
    assert told is not None
    assert told.reason.endswith("it gave way, and resumes from its checkpoint once there is room")
    pass_hours(history, 4)
    assert who(history) == [(long.id, short.id)]
    assert not history.sessions, "both came to their end"


def test_an_account_that_holds_all_gives_to_one_that_holds_nothing() -> None:
    history = History(Rules(), 1)
    some = [of("kim", 24, history, gpus=1) for _ in range(WIDTH)]
    for one in some:
        history.submit(one, 1e9, 600)
    history.pass_()
    others = [of("lee", 48, history, gpus=1) for _ in range(WIDTH)]
    for one in others:
        history.submit(one, 1e9, 600)
    pass_hours(history, 3)
    running = [one.owner for one in history.sessions.values() if one.replicas]
    assert sorted(running) == ["kim", "kim", "lee", "lee"]
    assert len(history.gave_way) == 2
    assert history.gave_way[0][3].why.endswith(", since lee holds less")


def test_who_has_never_saved_is_left_alone_within_its_class() -> None:
    history = History(Rules(), 1)
    history.submit(of("kim", 24, history), 1e9, 0)
    history.pass_()
    history.submit(of("lee", 1, history), 600, 0)
    history.submit(of("kim", 1, history), 600, 0)
    pass_hours(history, 3)
    assert not history.gave_way


def test_a_gang_takes_from_others_only_what_it_lacks() -> None:
    history = History(Rules(), 2)
    spec = {"priority": Priority.LOW, "preemptible": True}
    low = session(WIDTH * 1000, owner="kim", spec=spec, created_at=history.now, cpu=1000)
    history.submit(low, 1e9, 0)
    history.pass_()
    pass_hours(history, 0.2)
    gang = session(2000, 3, owner="lee", created_at=history.now, cpu=1000)
    history.submit(gang, 60_000, 0)
    pass_hours(history, 0.2)
    assert who(history) == [(low.id, gang.id)]
    assert len(history.sessions[gang.id].replicas) == 3


def test_a_gang_has_several_replicas_where_several_give_way_on_one_node() -> None:
    history = History(Rules(), 1)
    spec = {"priority": Priority.LOW, "preemptible": True}
    for _ in range(WIDTH):
        one = session(1000, owner="kim", spec=spec, created_at=history.now, cpu=1000)
        history.submit(one, 1e9, 0)
    pass_hours(history, 0.2)
    gang = session(1000, 3, owner="lee", created_at=history.now, cpu=1000)
    history.submit(gang, 600, 0)
    pass_hours(history, 0.1)
    assert len(history.gave_way) == 3
