"""The leader's loops on a clock that tests move."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import pytest

from controlplane.domain.errors import Unavailable
from controlplane.domain.identity import NodeCaller
from controlplane.domain.lifecycle import SessionState
from controlplane.domain.notices import WebhookEvent
from controlplane.domain.program_changes import ChangeKind, ProgramChange, withdrawn
from controlplane.domain.values import (
    Allocation,
    Cause,
    Drain,
    End,
    Hold,
    Node,
    Priority,
    Replica,
    Session,
)
from controlplane.history.sqlite import open_history
from controlplane.history.sqlite.history import SqliteHistory
from controlplane.nodes.dispatch_loop import Ordering
from controlplane.nodes.liveness_loop import Liveness
from controlplane.nodes.lost_nodes import LOST_AFTER_MARGIN_S
from controlplane.nodes.node_maintenance_loop import GATHER_S, Upkeep
from controlplane.nodes.nodes import NodeKeeper
from controlplane.nodes.registration import Registrar, Registration
from controlplane.notices.notices import Outbox
from controlplane.scheduler.explain import UNREADY_WORDS
from controlplane.sessions.export import Exporter
from controlplane.sessions.export_loop import Exporting
from controlplane.sessions.scheduling_loop import AGAIN_S, PLACED_AT_ONCE, Renewal, Scheduling
from controlplane.state.agent_connections import AgentConnections
from controlplane.state.committer import Deposed
from controlplane.state.live_state import LiveState
from controlplane.state.references import References
from controlplane.state.replica_reports import BAD_IF_LOST_WITHIN_S, apply_report
from controlplane.state.replica_rights import Rights
from controlplane.store.interface import StoreUnavailable
from controlplane.stored.etcd_codec import decode_notice, decode_session, session_key
from controlplane.usage.usage import Usages
from nsml.common.clock import SteadyClock, inline
from tests.unit.controlplane.builders import node, session
from tests.unit.controlplane.workbench import Bench, HandClock, bench, report

SILENT_AFTER_S = 10.0


class SteppedClock(HandClock):
    """Sleeping ends when the test has moved the time so far."""

    def __init__(self) -> None:
        super().__init__()
        self.set_by = 0.0
        self._moved = asyncio.Condition()

    def time(self) -> float:
        return self.now + self.set_by

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        async with self._moved:
            await self._moved.wait_for(lambda: self.now >= until)

    async def pass_(self, seconds: float) -> None:
        async with self._moved:
            self.now += seconds
            self._moved.notify_all()
        await turns()


async def turns(count: int = 60) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass
class Led:
    made: Bench
    clock: SteppedClock
    state: LiveState
    contacts: AgentConnections
    committer: object

    def run(self, loop) -> None:
        self.made.tasks.append(self.made.group.create_task(loop.run()))

    async def say(self, one, phase, **told) -> None:
        said = report(one, phase, **told)
        unheard = self.contacts.unheard
        await self.committer.decide(lambda d: apply_report(d, said, unheard, self.clock.now))
        await turns()


@contextlib.asynccontextmanager
async def led(*things):
    async with bench() as made:
        clock = SteppedClock()
        made.clock = clock
        state = await made.member()
        await made.write(*things)
        await made.settled(state)
        contacts = AgentConnections(state=state, clock=clock)
        committer = made.committer(state)
        made.lead(committer, await made.elect())
        await turns()
        contacts.restart()
        yield Led(made, clock, state, contacts, committer)


def scheduling(at: Led, renewal: Renewal | None = None) -> Scheduling:
    clock = SteadyClock(at.clock)
    return Scheduling(state=at.state, committer=at.committer, clock=clock, renewal=renewal)


def liveness(at: Led) -> Liveness:
    return Liveness(
        state=at.state,
        committer=at.committer,
        contacts=at.contacts,
        clock=at.clock,
        silent_after_s=SILENT_AFTER_S,
    )


def keeper(at: Led) -> NodeKeeper:
    return NodeKeeper(state=at.state, committer=at.committer, contacts=at.contacts, clock=at.clock)


class Between:
    """A committer; `happens` once, between what was settled and what the node is written as."""

    def __init__(self, committer, happens) -> None:
        self.decide = committer.decide
        self._committer = committer
        self._happens = happens

    async def decide_all(self, decisions):
        made = await self._committer.decide_all(decisions)
        await self._happens()
        return made


async def register(at: Led, as_node: Node, *replicas, committer=None, term: int = 0) -> None:
    """Its agent comes, with nothing but these replicas."""
    registrar = Registrar(
        state=at.state,
        committer=committer or at.committer,
        contacts=at.contacts,
        keeper=keeper(at),
        rights=Rights(references=References(state=at.state, history=None), state=at.state),  # type: ignore[arg-type]
        clock=at.clock,
        cluster_id="c",
    )
    said = Registration(
        node=as_node, cluster_id="c", highest_term=term, highest_revision=0, replicas=replicas
    )
    await registrar.register(NodeCaller(node=as_node.name), said, 1 << 40)
    await turns()


async def test_what_is_queued_is_placed_when_an_agent_connects() -> None:
    one, two = session(2000), session(2000)
    async with led(node("a"), one, two) as at:
        loop = scheduling(at)
        at.run(loop)
        await turns()
        assert at.state.session(one.id).state is SessionState.QUEUED
        assert "1 node is silent" in loop.waiting(one.id).reason
        at.contacts.connect("a")
        await turns()
        assert at.state.session(one.id).state is SessionState.PREPARING
        assert "no whole GPU is free" in loop.waiting(two.id).reason
        await at.say(one, "FINALIZED", cause="COMPLETED")
        assert at.state.session(two.id).state is SessionState.PREPARING
        assert loop.waiting(two.id) is None


async def test_a_bad_attempt_waits_before_the_next() -> None:
    one = session()
    async with led(node("a"), one) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        await turns()
        await at.say(one, "FINALIZED", cause="DATA_FAILED")
        after = at.state.session(one.id)
        assert (after.state, after.attempt) == (SessionState.QUEUED, 1)
        assert after.not_before > at.clock.now


async def test_what_waits_for_its_time_is_put_off_by_no_other_change() -> None:
    waiting, other = session(), session(state=SessionState.HELD)
    waiting = replace(waiting, not_before=HandClock().now + 5)
    async with led(node("a"), waiting, other) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        await turns()
        await at.clock.pass_(10)
        with at.state.subscribed(session_key(waiting.id)) as changes:
            await at.made.write(replace(other, memo="changed"))
            async with asyncio.timeout(60):
                await changes.take()
        assert at.state.session(waiting.id).state is SessionState.PREPARING


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
async def test_a_clock_that_is_set_makes_nobody_wait_longer_or_shorter(by_s: float) -> None:
    waiting, other = session(), session(state=SessionState.HELD)
    waiting = replace(waiting, not_before=HandClock().now + 20)
    async with led(node("a"), waiting, other) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        await turns()
        at.clock.set_by = by_s
        for passed, state in ((15, SessionState.QUEUED), (10, SessionState.PREPARING)):
            await at.clock.pass_(passed)
            await at.made.write(replace(other, memo=f"{passed}"))
            await turns(50)
            assert at.state.session(waiting.id).state is state


async def test_what_others_decide_waits_for_no_whole_plan() -> None:
    many = [session(0, cpu=1, memory=1) for _ in range(3 * PLACED_AT_ONCE)]
    async with led(node("a"), *many) as at:
        at.run(scheduling(at))
        await turns()
        at.contacts.connect("a")
        placed: list[object] = []
        while not placed:
            await asyncio.sleep(0)
            placed = [one for one in many if at.state.session(one.id).replicas]
        await at.committer.decide(lambda draft: None)
        placed = [one for one in many if at.state.session(one.id).replicas]
        assert len(placed) <= 2 * PLACED_AT_ONCE
        await turns(3000)
        assert all(at.state.session(one.id).replicas for one in many)


async def test_who_comes_while_a_large_plan_is_carried_out_goes_before_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controlplane.sessions.scheduling_loop.MOST_PLACED", 2)
    many = [session(1000) for _ in range(8)]
    urgent = session(1000, spec={"priority": Priority.HIGH})
    async with led(node("a", 8), *many) as at:
        at.run(scheduling(at))
        await turns()
        at.contacts.connect("a")
        placed: list[object] = []
        while not placed:
            await asyncio.sleep(0)
            placed = [one for one in many if at.state.session(one.id).replicas]
        await at.made.write(urgent)
        await turns(300)
        placed = [one for one in many if at.state.session(one.id).replicas]
        assert at.state.session(urgent.id).replicas
        assert len(placed) == 7


class Refusing:
    """A committer that lets no placement stand."""

    def __init__(self) -> None:
        self.asked = 0

    async def decide_all(self, decisions):
        self.asked += 1
        return [False for _ in decisions]


async def test_what_does_not_stand_is_not_asked_for_again_without_a_pause() -> None:
    async with led(node("a"), session()) as at:
        at.contacts.connect("a")
        at.committer = refusing = Refusing()
        at.run(scheduling(at))
        await turns(300)
        assert refusing.asked == 1
        await at.clock.pass_(AGAIN_S)
        assert refusing.asked == 2


class Renewing:
    """A renewal of some sessions that fails, or does not end, until the test says so."""

    def __init__(self, *of: str, wait_s: float = 5.0) -> None:
        self.of, self.wait_s = of, wait_s
        self.asked: list[str] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    def must_renew(self, one: Session) -> bool:
        return one.id in self.of

    async def renew_before_start(self, sessions: Iterable[Session]) -> Mapping[str, float]:
        ids = [one.id for one in sessions]
        self.asked += ids
        await self.goes_on.wait()
        return dict.fromkeys(ids, self.wait_s) if self.wait_s else {}


async def test_who_cannot_start_yet_takes_nothing_from_those_who_can() -> None:
    unready, ready = session(), session()
    renewal = Renewing(unready.id)
    async with led(node("a", 1), unready, ready) as at:
        at.contacts.connect("a")
        loop = scheduling(at, renewal)
        at.run(loop)
        await turns(300)
        assert at.state.session(ready.id).state is SessionState.PREPARING
        assert renewal.asked == [unready.id]
        assert loop.waiting(unready.id).reason == UNREADY_WORDS
        assert loop.dropped == 0
        await at.say(ready, "FINALIZED", cause="COMPLETED")
        await turns(300)
        assert renewal.asked == [unready.id], "it was asked again before its time"
        renewal.wait_s = 0.0
        await at.clock.pass_(5.0)
        await at.made.write(session(state=SessionState.HELD))
        await turns(300)
        assert at.state.session(unready.id).state is SessionState.PREPARING
        assert loop.repaired == 0


async def test_who_needs_no_renewal_waits_for_none() -> None:
    slow, ready = session(), session()
    renewal = Renewing(slow.id, wait_s=0.0)
    renewal.goes_on.clear()
    async with led(node("a", 2), slow, ready) as at:
        at.contacts.connect("a")
        at.run(scheduling(at, renewal))
        await turns(300)
        assert renewal.asked == [slow.id]
        assert at.state.session(ready.id).state is SessionState.PREPARING
        assert at.state.session(slow.id).state is SessionState.QUEUED
        renewal.goes_on.set()
        await turns(300)
        assert at.state.session(slow.id).state is SessionState.PREPARING


async def test_nobody_gives_way_to_one_that_cannot_start_yet() -> None:
    low = session(spec={"priority": Priority.LOW, "preemptible": True})
    urgent = session(spec={"priority": Priority.HIGH})
    renewal = Renewing(urgent.id)
    async with led(node("a", 1), low) as at:
        at.contacts.connect("a")
        at.run(scheduling(at, renewal))
        await turns()
        await at.say(low, "RUNNING")
        await at.clock.pass_(600.0)
        await at.made.write(urgent)
        await turns(300)
        assert renewal.asked == [urgent.id]
        assert at.state.session(low.id).state is SessionState.RUNNING
        renewal.wait_s = 0.0
        await at.clock.pass_(5.0)
        await at.made.write(session(state=SessionState.HELD))
        await turns(300)
        assert at.state.session(low.id).state is SessionState.STOPPING


async def test_a_node_is_told_what_has_left_however_much_goes_on_elsewhere() -> None:
    async with led(node("a"), node("b")) as at:
        link = at.contacts.connect("a")
        at.run(Ordering(state=at.state, contacts=at.contacts))
        await turns()
        link.ordered = frozenset({("s1", 1, 0)})
        link.wants_orders = False
        async with asyncio.timeout(60):
            at.state.put_allocation(Allocation(node="a"), 1_000)
            for revision in itertools.count(1_001):
                if link.wants_orders:
                    break
                at.state.put_allocation(Allocation(node="b"), revision)
                await asyncio.sleep(0.002)


async def test_a_node_is_told_again_only_what_is_new_of_a_changed_program() -> None:
    change = ProgramChange(number=1, kind=ChangeKind.SET, attempt=1, asked_by="kim", asked_at=0.0)
    running = session(state=SessionState.RUNNING, attempt=1, changes=(change,))
    asked = replace(running, replicas=(Replica(rank=0, node="a"),))
    phases = [asked, replace(asked, memo="x"), asked.with_change(withdrawn(change, "no", 1.0))]
    async with led(node("a")) as at:
        link = at.contacts.connect("a")
        at.run(Ordering(state=at.state, contacts=at.contacts))
        await turns()
        wanted = []
        for revision, one in enumerate(phases, start=1_000):
            link.wants_orders = False
            at.state.put_session(one, revision)
            await turns()
            wanted.append(link.wants_orders)
        assert wanted == [True, False, True]


async def test_silence_makes_unknown_and_a_word_ends_it() -> None:
    one = session()
    async with led(node("a"), one) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        at.run(liveness(at))
        await turns()
        await at.say(one, "RUNNING")
        await at.clock.pass_(SILENT_AFTER_S - 1)
        assert at.state.session(one.id).state is SessionState.RUNNING
        at.contacts.heard("a")
        await at.clock.pass_(2)
        assert at.state.session(one.id).state is SessionState.RUNNING
        await at.clock.pass_(SILENT_AFTER_S)
        assert at.state.session(one.id).state is SessionState.UNKNOWN
        assert at.state.allocations["a"].value.replicas
        assert at.contacts.link("a").failure is not None
        at.contacts.heard("a")
        await at.clock.pass_(SILENT_AFTER_S / 5)
        assert at.state.session(one.id).state is SessionState.RUNNING


async def test_a_node_that_is_removed_while_others_are_looked_at_is_forgotten() -> None:
    async with led(node("a"), node("b")) as at:

        async def removed() -> None:
            if "b" in at.state.nodes:
                await keeper(at).remove("b")

        at.committer = Between(at.committer, removed)
        at.run(liveness(at))
        await at.clock.pass_(SILENT_AFTER_S + 1)
        assert list(at.state.nodes) == ["a"]
        assert at.contacts.unheard == {"a"}


async def test_nobody_is_silent_before_the_grace_after_an_election() -> None:
    one = session()
    async with led(node("a"), one) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        await turns()
        await at.say(one, "RUNNING")
        await at.clock.pass_(1000)
        at.contacts.restart()
        at.run(liveness(at))
        await at.clock.pass_(SILENT_AFTER_S - 1)
        assert at.state.session(one.id).state is SessionState.RUNNING
        await at.clock.pass_(1)
        assert at.state.session(one.id).state is SessionState.UNKNOWN


async def test_what_a_predecessor_was_connected_with_is_used_until_it_should_have_come() -> None:
    one, two = session(), session()
    async with led(node("a"), one) as at:
        at.contacts.restart(handed_over=frozenset({"a", "removed"}))
        at.run(scheduling(at))
        await turns()
        assert at.state.session(one.id).state is SessionState.PREPARING
        at.contacts.look_again()
        await at.made.write(two)
        await turns()
        assert at.state.session(two.id).state is SessionState.QUEUED
        at.contacts.connect("a")
        await turns()
        assert at.state.session(two.id).state is SessionState.PREPARING


async def test_after_lost_after_it_is_gone_and_not_before() -> None:
    kept = session(1000)
    one = session(1000, spec={"lost_after_s": 100.0, "retry_count": 1})
    async with led(node("a"), kept, one) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        at.run(liveness(at))
        await turns()
        await at.say(kept, "RUNNING")
        await at.say(one, "RUNNING")
        link = at.contacts.link("a")
        at.contacts.disconnect(link)
        proof = 100.0 + one.spec.grace_s + LOST_AFTER_MARGIN_S
        for _ in range(int(proof // 2)):
            await at.clock.pass_(2)
        assert at.state.session(one.id).state is SessionState.UNKNOWN
        for _ in range(3):
            await at.clock.pass_(2)
        again = at.state.session(one.id)
        assert (again.state, again.attempts[0].cause) == (SessionState.QUEUED, Cause.LOST_AFTER)
        assert at.state.session(kept.id).state is SessionState.UNKNOWN
        [held] = at.state.allocations["a"].value.replicas
        assert held.session_id == kept.id


async def test_a_session_whose_nodes_die_soon_after_each_start_is_held() -> None:
    one = session(spec={"retry_count": 9})
    async with led(node("a"), one) as at:
        at.run(scheduling(at))
        at.run(liveness(at))
        await turns()
        for attempt in (1, 2, 3):
            await at.clock.pass_(100)  # the wait after a bad attempt is over
            at.contacts.connect("a")
            await turns()
            await at.say(one, "RUNNING", attempt=attempt, at=at.clock.now)
            await at.clock.pass_(5)
            at.contacts.heard("a")
            at.contacts.disconnect(at.contacts.link("a"))
            for _ in range(10):
                await at.clock.pass_(10)
            assert at.state.session(one.id).state is SessionState.UNKNOWN
            at.contacts.heard("a")  # telemetry may be faster than the registration
            await register(at, node("a", boot_id=f"boot{attempt + 1}"))
            at.contacts.disconnect(at.contacts.link("a"))
            assert at.state.session(one.id).bad_attempts == attempt
        held = at.state.session(one.id)
        assert (held.state, held.end.cause) == (SessionState.HELD, Cause.NODE_LOST)


@pytest.mark.parametrize(("ran_for_s", "state"), [(5, "HELD"), (BAD_IF_LOST_WITHIN_S, "QUEUED")])
async def test_a_session_whose_nodes_stay_dead_is_held_if_they_die_soon_after_each_start(
    ran_for_s: float, state: str
) -> None:
    lost_after = 100.0
    one = session(spec={"retry_count": 9, "lost_after_s": lost_after})
    async with led(node("a"), node("b"), node("c"), one) as at:
        at.run(scheduling(at))
        at.run(liveness(at))
        await turns()
        for attempt, name in enumerate("abc", start=1):
            await at.clock.pass_(100)  # the wait after a bad attempt is over
            at.contacts.connect(name)
            await turns()
            await at.say(one, "RUNNING", attempt=attempt, node=name, at=at.clock.now)
            await at.clock.pass_(ran_for_s)
            at.contacts.heard(name)
            at.contacts.disconnect(at.contacts.link(name))
            silence = lost_after + one.spec.grace_s + LOST_AFTER_MARGIN_S
            for _ in range(int(silence // 10) + 1):
                await at.clock.pass_(10)
        after = at.state.session(one.id)
        assert [ended.cause for ended in after.attempts] == [Cause.LOST_AFTER] * 3
        assert after.state == state


async def test_a_node_that_dies_long_after_the_start_forgives_bad_attempts() -> None:
    one = session(spec={"retry_count": 9}, bad_attempts=2)
    async with led(node("a"), one) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        await turns()
        await at.say(one, "PAUSED", at=at.clock.now)
        await at.clock.pass_(BAD_IF_LOST_WITHIN_S - 1)
        await at.say(one, "RUNNING", at=at.clock.now)
        await at.clock.pass_(1)
        at.contacts.heard("a")
        await register(at, node("a", boot_id="boot2"))
        again = at.state.session(one.id)
        assert (again.attempt, again.bad_attempts) == (2, 0)


async def test_a_leader_who_never_heard_the_lost_node_calls_no_attempt_bad() -> None:
    one = session(spec={"retry_count": 9})
    async with led(node("a"), one) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        await turns()
        await at.say(one, "RUNNING", at=at.clock.now)
        await at.clock.pass_(BAD_IF_LOST_WITHIN_S)
        # Another control plane, which knows what is written and nothing else.
        at.contacts = AgentConnections(state=at.state, clock=at.clock)
        await register(at, node("a", boot_id="boot2"))
        assert at.state.session(one.id).bad_attempts == 0


async def test_who_waits_for_a_lost_peer_does_not_make_the_attempt_longer() -> None:
    one = session(replicas=2, gpu=2000, spec={"retry_count": 9})
    async with led(node("a"), node("b"), one) as at:
        at.contacts.connect("a")
        at.contacts.connect("b")
        at.run(scheduling(at))
        await turns()
        for rank, name in enumerate("ab"):
            await at.say(one, "RUNNING", rank=rank, node=name, at=at.clock.now)
        at.contacts.heard("b")
        await at.clock.pass_(300)
        await register(at, node("b", boot_id="boot2"))
        await at.say(one, "FINALIZED", cause="GANG_MEMBER_FAILED", at=at.clock.now, ran_for_s=300.0)
        again = at.state.session(one.id)
        assert (again.attempts[0].cause, again.bad_attempts) == (Cause.NODE_LOST, 1)


def exporting_to(
    history: SqliteHistory, at: Bench, *, term: int, outbox: Outbox | None = None
) -> Exporter:
    usages = Usages(state=at.state, history=history, clock=at.clock)
    outbox = outbox or outbox_for(at)
    return Exporter(
        history=history,
        committer=at.committer,
        usages=usages,
        outbox=outbox,
        term=lambda: term,
    )


def outbox_for(at: Bench, *events: WebhookEvent) -> Outbox:
    """With a webhook of everybody that is called for these; without them nobody has one."""

    async def wanted(owners: Collection[str]) -> dict[str, tuple[WebhookEvent, ...]]:
        return dict.fromkeys(owners, events) if events else {}

    return Outbox(at.made.store, wanted=wanted, is_full=lambda: False, clock=at.clock)


async def test_an_ended_session_is_exported_once_whatever_fails() -> None:
    one, other = session(), session()
    async with led(node("a"), one, other) as at:
        history = await open_history(":memory:", clock=at.clock, run=inline)
        at.contacts.connect("a")
        at.run(scheduling(at))
        exporter = exporting_to(history, at, term=1)
        at.run(Exporting(state=at.state, exporter=exporter, clock=at.clock))
        await turns()
        await at.say(one, "FINALIZED", cause="COMPLETED")
        at.made.store.faults = ["lost after", "lost before"]
        async with asyncio.timeout(60):
            while at.state.session(one.id) is not None:
                await at.clock.pass_(0.1)
                # Soft decisions wait for company on the event loop's own time.
                await asyncio.sleep(0.001)
        row = await history.catalogue.session(one.id)
        assert row.state == "SUCCEEDED"
        assert at.state.session(other.id) is not None
        charged = await history.ledger.charged(owner="kim")
        assert charged == 0.0
        assert await at.made.store.get(f"session/{one.id}") is None
        await history.close()


async def test_a_session_leaves_with_one_notice_whatever_fails() -> None:
    failed, fine = (
        session(state=state, ended_at=5.0, started_at=1.0, end=End(cause=cause, message="why"))
        for state, cause in (
            (SessionState.FAILED, Cause.PROGRAM_FAILED),
            (SessionState.SUCCEEDED, Cause.COMPLETED),
        )
    )
    async with led(failed, fine) as at:
        history = await open_history(":memory:", clock=at.clock, run=inline)
        away = [StoreUnavailable("scripted")]

        async def wanted(owners: Collection[str]) -> dict[str, tuple[WebhookEvent, ...]]:
            if away:
                raise away.pop()
            return dict.fromkeys(owners, (WebhookEvent.FAILED,))

        outbox = Outbox(at.made.store, wanted=wanted, is_full=lambda: False, clock=at.clock)
        exporter = exporting_to(history, at, term=1, outbox=outbox)
        at.made.store.faults = ["lost after", "lost before", "down"]
        at.run(Exporting(state=at.state, exporter=exporter, clock=at.clock))
        async with asyncio.timeout(60):
            while at.state.session(fine.id) or not outbox.owners():
                await at.clock.pass_(0.1)
                await asyncio.sleep(0.001)
        assert at.state.session(failed.id) is None
        [item] = (await at.made.store.list("notice/")).items
        told = decode_notice(item.value)
        assert (told.owner, told.session_id, told.event) == ("kim", failed.id, WebhookEvent.FAILED)
        assert not away
        assert outbox.first("kim") == item.key == f"notice/kim/{failed.id}"
        await history.close()


async def test_a_session_that_changes_while_it_is_exported_leaves_no_notice_before_it() -> None:
    one = session(state=SessionState.SUCCEEDED, ended_at=5.0)
    async with led(one) as at:
        history = await open_history(":memory:", clock=at.clock, run=inline)
        exporter = exporting_to(history, at, term=1, outbox=outbox_for(at, WebhookEvent.ENDED))
        stale = replace(one, memo="as it was before")
        await exporter.export([stale])
        assert at.state.session(one.id) == one
        assert (await at.made.store.list("notice/")).items == ()
        await exporter.export([one])
        assert len((await at.made.store.list("notice/")).items) == 1
        await history.close()


async def test_an_exporter_that_finds_a_later_leader_stops() -> None:
    one = session(state=SessionState.SUCCEEDED, ended_at=5.0)
    async with led(one) as at:
        history = await open_history(":memory:", clock=at.clock, run=inline)
        await history.ledger.charge([], term=9)
        exporter = exporting_to(history, at, term=8)
        with pytest.raises(Deposed):
            await Exporting(state=at.state, exporter=exporter, clock=at.clock).run()
        assert at.state.session(one.id) == one
        assert await history.catalogue.session(one.id) is None
        await history.close()


async def test_a_memo_that_changes_during_the_export_is_exported() -> None:
    one = session(state=SessionState.SUCCEEDED, ended_at=5.0)
    async with led(one) as at:
        history = await open_history(":memory:", clock=at.clock, run=inline)
        put, late = history.catalogue.put_session, [replace(one, memo="late")]

        async def put_and_change(*row, term: int) -> None:
            await put(*row, term=term)
            if late:
                await at.made.write(late.pop())
                await at.made.settled(at.state)

        history.catalogue.put_session = put_and_change
        exporter = exporting_to(history, at, term=1)
        at.run(Exporting(state=at.state, exporter=exporter, clock=at.clock))
        async with asyncio.timeout(60):
            while at.state.session(one.id) is not None:
                await at.clock.pass_(0.1)
                await asyncio.sleep(0.001)
        row = await history.catalogue.session(one.id)
        assert decode_session(row.record).memo == "late"
        await history.close()


async def test_a_node_with_more_sessions_than_a_transaction_holds() -> None:
    many = [session(0, cpu=1, memory=1) for _ in range(300)]
    async with led(node("a"), *many) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        at.run(liveness(at))
        await turns(200)
        for one in many:
            await at.say(one, "RUNNING")
        await at.clock.pass_(SILENT_AFTER_S)
        await turns(200)
        states = {at.state.session(one.id).state for one in many}
        assert states == {SessionState.UNKNOWN}
        await register(at, node("a", boot_id="boot2"))
        assert not at.state.allocations["a"].value.replicas
        assert {at.state.session(one.id).end.cause for one in many} == {Cause.NODE_LOST}


async def test_a_fence_that_comes_while_an_agent_registers_stands_until_it_is_carried_out() -> None:
    one = session()
    async with led(node("a"), one) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        await turns()
        await at.say(one, "RUNNING")
        running = report(one, "RUNNING")

        async def fence() -> None:
            await keeper(at).fence("a", asked_by="root1", reason="", force=True)

        with pytest.raises(Unavailable):
            await register(at, node("a"), running, committer=Between(at.committer, fence))
        assert at.state.nodes["a"].value.fence is not None
        assert at.state.session(one.id).end.cause is Cause.NODE_LOST
        await register(at, node("a"), running)
        assert at.state.nodes["a"].value.fence is not None
        assert at.contacts.link("a").owed == {(one.id, 1, 0)}


async def test_a_hold_that_is_lifted_while_an_agent_registers_stays_lifted() -> None:
    term = 1 << 41
    held = node("a", hold=Hold(found_at=1.0, term=term))
    async with led(held) as at:

        async def resume() -> None:
            await keeper(at).resume("a", asked_by="root1")

        between = Between(at.committer, resume)
        with pytest.raises(Unavailable):
            await register(at, node("a"), committer=between, term=term)
        assert at.state.nodes["a"].value.hold.lifted_by == "root1"
        await register(at, node("a"), term=term)
        assert at.contacts.link("a").starts_anew


async def test_a_gang_whose_part_on_a_drained_node_has_ended_is_not_moved() -> None:
    one = session(2000, replicas=2)
    async with led(node("a"), node("b"), one) as at:
        at.contacts.connect("a")
        at.contacts.connect("b")
        at.run(scheduling(at))
        await turns()
        on = {replica.node: replica.rank for replica in at.state.session(one.id).replicas}
        for name, rank in on.items():
            await at.say(one, "RUNNING", rank=rank, node=name)
        await at.say(one, "EXITED", rank=on["a"], cause="COMPLETED")
        at.run(Upkeep(state=at.state, keeper=keeper(at), clock=at.clock))
        for name, state in (("a", SessionState.RUNNING), ("b", SessionState.STOPPING)):
            await keeper(at).drain(name, asked_by="root1", reason="", move_after_s=0.0)
            await turns()
            await at.clock.pass_(GATHER_S)
            assert at.state.session(one.id).state is state


async def test_a_drain_that_is_due_just_after_the_look_waits_for_nothing_else() -> None:
    """Its instant may pass between the look at it and the wait for the next one."""
    drained = node("a", drain=Drain(asked_by="root1", move_at=100.0))

    class Slow(Upkeep):
        async def _look(self, name: str) -> None:
            await super()._look(name)
            clock.now = 100.1

    clock = HandClock()
    clock.now = 99.9
    async with led(drained, session()) as at:
        at.contacts.connect("a")
        await turns()
        moved = asyncio.Event()

        class Keeper:
            def is_empty(self, name: str) -> bool:
                return False

            async def move(self, *_: object) -> None:
                moved.set()

        at.run(Slow(state=at.state, keeper=Keeper(), clock=clock))  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            await moved.wait()


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
async def test_a_drain_moves_in_its_time_however_the_clock_is_set(by_s: float) -> None:
    one = session()
    async with led(node("a"), one) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        await turns()
        await at.say(one, "RUNNING")
        steady = SteadyClock(at.clock)
        drains = NodeKeeper(
            state=at.state, committer=at.committer, contacts=at.contacts, clock=steady
        )
        at.run(Upkeep(state=at.state, keeper=drains, clock=steady))
        await drains.drain("a", asked_by="root1", reason="", move_after_s=100.0)
        at.clock.set_by = by_s
        for passed, state in ((90, SessionState.RUNNING), (20, SessionState.STOPPING)):
            await at.clock.pass_(passed)
            # It looks whenever something happens to a node.
            await at.made.write(node(f"after-{passed}"))
            await turns()
            await at.clock.pass_(GATHER_S)
            assert at.state.session(one.id).state is state


async def test_nothing_is_moved_off_a_node_that_was_resumed_meanwhile() -> None:
    one = session()
    async with led(node("a"), one) as at:
        at.contacts.connect("a")
        at.run(scheduling(at))
        await turns()
        await at.say(one, "RUNNING")
        drained = await keeper(at).drain("a", asked_by="root1", reason="", move_after_s=0.0)
        await keeper(at).resume("a", asked_by="root1")
        await keeper(at).move(drained, drained.drain)
        assert at.state.session(one.id).state is SessionState.RUNNING
