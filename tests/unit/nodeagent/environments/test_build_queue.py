"""How many builds run at once, whose is next, and what each may use."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.config import Settings
from nodeagent.environments.build_queue import (
    DECENT_DISK_BYTES,
    BuildQueue,
    QueueLimits,
    Request,
    Turn,
    choose,
)
from nodeagent.environments.builds import Builds
from nodeagent.environments.errors import EnvironmentCancelled
from nodeagent.environments.sandbox import BuildLimits
from nodeagent.storage.eviction import NoRoom
from nodeagent.wiring import build_limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodeagent.environments.builds import Say

GB = 1_000_000_000
OWNERS = st.sampled_from(["kim", "lee", "park"])
LIMITS = st.builds(
    QueueLimits,
    at_once=st.integers(1, 5),
    per_owner=st.integers(1, 4),
    memory_bytes=st.integers(1, 40).map(lambda number: number * GB),
)


def until(condition: object) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def requests(*owners: str, disk_bytes: int = GB) -> list[Request]:
    return [
        Request(owner=owner, number=number, memory_bytes=GB, disk_bytes=disk_bytes)
        for number, owner in enumerate(owners)
    ]


@dataclass
class Node:
    """A node whose builds are played through: a disk, what waits, and what runs on it."""

    limits: QueueLimits
    free: int
    waiting: list[Request] = field(default_factory=list)
    running: list[Turn] = field(default_factory=list)
    last_turns: dict[str, int] = field(default_factory=dict)
    starts: Iterator[int] = field(default_factory=itertools.count)

    def start(self) -> Request | None:
        """Start the next one; none where the queue says so."""
        try:
            chosen = choose(
                self.waiting,
                self.running,
                self.limits,
                room_bytes=self.free,
                last_turns=self.last_turns,
            )
        except NoRoom:
            assert not self.running
            return None
        if chosen is None:
            return None
        request, turn = chosen
        self.waiting.remove(request)
        self.running.append(turn)
        self.last_turns[turn.owner] = next(self.starts)
        return request

    def check(self) -> None:
        """What must hold whatever happened before."""
        limits = self.limits
        assert len(self.running) <= limits.at_once
        builds = Counter(one.owner for one in self.running)
        assert all(count <= limits.per_owner for count in builds.values())
        assert sum(one.memory_bytes for one in self.running) <= limits.memory_bytes
        if limits.at_once > 1 and self.running:
            assert len(builds) > 1 or len(self.running) < limits.at_once, "no place for another"


@given(
    limits=LIMITS,
    free=st.integers(0, 300).map(lambda number: number * GB),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("ask"), OWNERS, st.integers(1, 60), st.integers(1, 20)),
            st.tuples(st.just("write"), st.integers(0, 4), st.integers(1, 60), st.just(0)),
            st.tuples(st.just("end"), st.integers(0, 4), st.just(0), st.just(0)),
        ),
        max_size=40,
    ),
)
def test_builds_together_keep_to_what_all_may_use(
    limits: QueueLimits, free: int, steps: list[tuple[str, str | int, int, int]]
) -> None:
    """Each writes as much as it likes within its own share: the disk has room for all of them to the end."""
    node = Node(limits, free)
    for number, (step, which, disk, memory) in enumerate(steps):
        if step == "ask":
            node.waiting.append(
                Request(
                    owner=str(which), number=number, memory_bytes=memory * GB, disk_bytes=disk * GB
                )
            )
        elif node.running:
            turn = node.running[int(which) % len(node.running)]
            if step == "write":
                written = min(turn.reserved_bytes, disk * GB)
                turn.written_bytes += written
                node.free -= written
                assert node.free >= 0, "what one writes within its share ends another"
            else:
                node.running.remove(turn)
        while node.start() is not None:
            node.check()
        node.check()


@given(
    limits=LIMITS,
    crowd=st.lists(OWNERS, min_size=1, max_size=40),
    ends=st.lists(st.integers(0, 4), min_size=100, max_size=100),
)
def test_one_owners_crowd_keeps_no_other_from_starting_next(
    limits: QueueLimits, crowd: list[str], ends: list[int]
) -> None:
    """A new owner begins at once, or with the next place that is free after those who waited as long."""
    node = Node(limits, 1_000 * GB, waiting=requests(*crowd))
    while node.start() is not None:
        pass
    new = Request(owner="new", number=1_000, memory_bytes=GB, disk_bytes=GB)
    node.waiting.append(new)
    passed: Counter[str] = Counter()
    for end in ends:
        started = node.start()
        if started is new:
            break
        if started is not None:
            passed[started.owner] += 1
        elif node.running:
            node.running.pop(end % len(node.running))
    assert new not in node.waiting
    assert all(count == 1 for count in passed.values()), "nobody twice before the new one"


@given(limits=LIMITS, owners=st.lists(OWNERS, max_size=30))
def test_all_who_wait_build_in_the_end_and_each_owners_own_in_their_order(
    limits: QueueLimits, owners: list[str]
) -> None:
    node = Node(limits, 1_000 * GB, waiting=requests(*owners))
    started: list[Request] = []
    while node.waiting:
        if (request := node.start()) is not None:
            started.append(request)
        else:
            node.running.pop(0)
    for owner in set(owners):
        numbers = [one.number for one in started if one.owner == owner]
        assert numbers == sorted(numbers)
    assert len(started) == len(owners)


def test_on_a_small_disk_a_build_gets_half_and_never_little() -> None:
    def granted(free: int) -> list[int]:
        asked = requests("kim", "lee", "park", disk_bytes=50 * GB)
        node = Node(QueueLimits(), free, waiting=asked)
        while node.start() is not None:
            pass
        return [one.disk_bytes // GB for one in node.running]

    assert granted(160 * GB) == [50, 50, 50]
    assert granted(110 * GB) == [50, 50, 10]
    assert granted(30 * GB) == [15, 15]
    assert granted(15 * GB) == [10]
    assert granted(6 * GB) == [6]
    assert granted(10 << 20) == []
    assert DECENT_DISK_BYTES == 10 * GB


def test_one_that_waits_for_room_is_overtaken_by_nobody() -> None:
    large = Request(owner="kim", number=0, memory_bytes=GB, disk_bytes=50 * GB)
    small = Request(owner="lee", number=1, memory_bytes=GB, disk_bytes=GB)
    running = [Turn(owner="park", memory_bytes=GB, disk_bytes=15 * GB)]
    for waiting in ([large, small], [small, large]):
        chosen = choose(waiting, running, QueueLimits(), room_bytes=20 * GB, last_turns={})
        assert chosen is None
    running[0].written_bytes = 10 * GB
    chosen = choose([large, small], running, QueueLimits(), room_bytes=20 * GB, last_turns={})
    assert chosen is not None
    assert (chosen[0], chosen[1].disk_bytes, chosen[1].is_disk_short) == (large, 15 * GB, True)


@pytest.mark.parametrize("together", [1 << 30, 5 << 30, 64 << 30])
def test_readings_of_files_have_memory_of_their_own_within_that_of_all(together: int) -> None:
    limits = BuildLimits(together_bytes=together)
    queue, small = limits.queue(lambda: 0), limits.small()
    assert queue.limits.memory_bytes + small.at_once * small.memory_bytes == together
    assert 2 * queue.limits.memory_each <= queue.limits.memory_bytes
    assert queue.limits.memory_each >= together // 4


@pytest.mark.parametrize(
    ("memory", "settings", "each"),
    [
        (16 << 30, {}, 3.5),
        (64 << 30, {}, 8),
        (1 << 40, {}, 8),
        (16 << 30, {"builds_at_once": 1}, 7),
        (16 << 30, {"builds_memory_bytes": 5 << 30}, 2),
    ],
)
def test_by_default_builds_get_no_more_than_half_of_the_machine(
    memory: int, settings: dict[str, int], each: float
) -> None:
    agent = Settings(node="n", server="unix:/s", data=Path("/d"), token_file=Path("/t"), **settings)
    limits = build_limits(agent, memory)
    queue = limits.queue(lambda: 0)
    assert limits.together_bytes <= (settings.get("builds_memory_bytes") or memory // 2)
    assert min(limits.memory_bytes, queue.limits.memory_each) == int(each * (1 << 30))


class Site:
    """Things that are built on a node by whoever asks first, each for as long as it is told to."""

    def __init__(self, folder: Path, limits: QueueLimits, pool: ThreadPoolExecutor) -> None:
        self.queue = BuildQueue(limits, lambda: self.room)
        self.room = 1_000 * GB
        self.running: dict[str, threading.Event] = {}
        self.built: list[str] = []
        self._builds = Builds(folder)
        self._pool = pool

    def ask(
        self,
        owner: str,
        key: str,
        said: bytearray | None = None,
        cancelled: threading.Event | None = None,
    ) -> Future[None]:
        said = bytearray() if said is None else said
        return self._pool.submit(self._ask, owner, key, said, cancelled)

    def _ask(
        self, owner: str, key: str, said: bytearray, cancelled: threading.Event | None
    ) -> None:
        def build(say: Say) -> None:
            say(b"begun\n")
            self.running[key] = threading.Event()
            assert self.running[key].wait(60)
            self.built.append(key)
            del self.running[key]

        def note(reason: str) -> None:
            said.extend(f"{reason}\n".encode())

        with self.queue.ticket(owner, memory_bytes=GB, disk_bytes=GB, waits=note) as ticket:
            self._builds.provide(
                key,
                is_there=lambda: key in self.built,
                build=build,
                say=said.extend,
                cancelled=cancelled,
                ticket=ticket,
            )

    def end(self, key: str) -> None:
        self.running[key].set()
        until(lambda: key in self.built)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as pool:
        yield pool


def test_one_users_crowd_waits_and_another_begins_at_once(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    site = Site(tmp_path / "builds", QueueLimits(at_once=3, per_owner=2), pool)
    words = [bytearray() for _ in range(20)]
    asked = [site.ask("kim", f"kim{n}", said) for n, said in enumerate(words)]
    until(lambda: len(site.running) == 2 and sum(b"waiting for" in said for said in words) >= 18)
    waits = next(said for said in words if b"begun" not in said)
    assert b"2 builds of your own" in waits
    assert b"user_builds_at_once" in waits
    asked.append(site.ask("lee", "lee"))
    until(lambda: len(site.running) == 3)
    assert "lee" in site.running
    most = 3
    while not all(one.done() for one in asked):
        most = max(most, len(site.running))
        for key in list(site.running):
            site.end(key)
    assert most == 3
    assert len(site.built) == 21
    for one in asked:
        one.result(60)


def test_two_who_need_the_same_build_it_once_and_whoever_may_first(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """The one who asked first has builds enough: the other does not wait for those."""
    site = Site(tmp_path / "builds", QueueLimits(at_once=3, per_owner=1), pool)
    site.ask("kim", "other")
    until(lambda: "other" in site.running)
    said = bytearray(), bytearray()
    first = site.ask("kim", "same", said[0])
    until(lambda: b"waiting for" in said[0])
    second = site.ask("lee", "same", said[1])
    until(lambda: b"begun" in said[0] and b"begun" in said[1])
    third = site.ask("park", "last")
    until(lambda: "last" in site.running)
    for key in ("same", "other", "last"):
        site.end(key)
    for one in (first, second, third):
        one.result(60)
    assert site.built.count("same") == 1
    assert b"waiting for" not in said[1]


def test_one_that_waits_leaves_when_its_user_says_so(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    site = Site(tmp_path / "builds", QueueLimits(at_once=1, per_owner=1), pool)
    first = site.ask("kim", "a")
    until(lambda: "a" in site.running)
    said, cancelled = bytearray(), threading.Event()
    second = site.ask("lee", "b", said, cancelled)
    third = site.ask("park", "c")
    until(lambda: b"waiting for" in said)
    assert b"this node runs 1 at once" in said
    cancelled.set()
    with pytest.raises(EnvironmentCancelled):
        second.result(60)
    site.end("a")
    until(lambda: "c" in site.running)
    site.end("c")
    first.result(60)
    third.result(60)
    assert site.built == ["a", "c"]


def test_on_a_full_disk_nothing_begins_and_the_node_is_blamed(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    site = Site(tmp_path / "builds", QueueLimits(), pool)
    site.room = -1
    with pytest.raises(NoRoom, match="too little room for a build"):
        site.ask("kim", "a").result(60)
    site.room = 2 * GB
    running = site.ask("kim", "a")
    until(lambda: "a" in site.running)
    said = bytearray()
    site.room = 0
    waiting = site.ask("lee", "b", said)
    until(lambda: b"the disk that builds have" in said)
    site.room = 2 * GB
    until(lambda: "b" in site.running)
    for key in ("a", "b"):
        site.end(key)
    running.result(60)
    waiting.result(60)


def test_who_waits_is_told_why_once_while_many_builds_come_and_go() -> None:
    """Each word is stored by the control plane."""
    queue = BuildQueue(QueueLimits(at_once=2, per_owner=1), lambda: 1_000 * GB)
    told: list[str] = []
    with queue.ticket("kim", memory_bytes=1, disk_bytes=1, waits=told.append) as waiting:
        for _ in range(5):
            with ExitStack() as stack:
                for owner in ("kim", "lee"):
                    other = queue.ticket(owner, memory_bytes=1, disk_bytes=1, waits=lambda _: None)
                    queue.stand_by(waiting)
                    assert stack.enter_context(other).begin()
                    assert not waiting.begin()
        assert len(told) == 1
        waiting.wait(None)
    assert told[1:] == [""]


def test_a_place_is_free_again_however_its_build_ends() -> None:
    queue = BuildQueue(QueueLimits(at_once=1, per_owner=1), lambda: GB)

    def fail() -> None:
        with queue.ticket("kim", memory_bytes=1, disk_bytes=1, waits=lambda _: None) as ticket:
            ticket.wait(None)
            raise OSError("lost")

    for _ in range(3):
        with pytest.raises(OSError, match="lost"):
            fail()
    with ExitStack() as stack:
        tickets = [
            stack.enter_context(
                queue.ticket("kim", memory_bytes=1, disk_bytes=1, waits=lambda _: None)
            )
            for _ in range(2)
        ]
        assert [ticket.begin() for ticket in tickets] == [True, False]
