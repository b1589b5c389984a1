"""A leader that was held up (a busy machine, SIGSTOP) leads on in its term if that never ended."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from controlplane.store.election import (
    Candidate,
    Leadership,
    LeadershipLost,
    current_leader,
    depose,
)
from controlplane.store.embedded import EmbeddedStore
from controlplane.store.interface import KeyValueStore, Lease, WatchBatch
from controlplane.store.revisions import MEMORY
from nsml.clock import Clock, inline
from tests.simulation import virtual_time
from tests.simulation.virtual_time import Process

TTL_S = 3.0
SHORT_S = 2.0
"""Longer than a leader is valid without a renewal, shorter than its lease."""
LONG_S = 4.0

timers = pytest.mark.parametrize("timers_last", [False, True])


class Link:
    """The leader's way to the store: its watches tell nothing, its renewals may hang."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.hangs = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        await asyncio.Event().wait()
        yield WatchBatch(revision=from_revision, events=())

    async def keep_alive(self, lease: Lease) -> Lease:
        if self.hangs:
            await asyncio.Event().wait()
        return await self._store.keep_alive(lease)


class Led:
    """A leader in a process of its own."""

    def __init__(self, store: KeyValueStore, clock: Clock) -> None:
        self.link = Link(store)
        self.process = Process("leader")
        self.valid_again = 0
        self.leadership = Leadership(
            self.link,
            Candidate(member="one", address="one:1"),
            clock=clock,
            ttl_s=TTL_S,
            regained=self._regained,
        )
        context = self.process.context()
        self.task = asyncio.create_task(self._lead(), name="lead", context=context)

    def leads(self) -> bool:
        return self.leadership.is_valid

    def _regained(self) -> None:
        assert self.leads()
        self.valid_again += 1

    async def _lead(self) -> None:
        async with self.leadership:
            await asyncio.Event().wait()


def with_a_leader(body: Callable[[EmbeddedStore, Clock, Led], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        clock = virtual_time.VirtualClock(asyncio.get_running_loop())
        async with EmbeddedStore(MEMORY, clock=clock, run=inline) as store:
            led = Led(store, clock)
            await clock.sleep(1.1)
            assert led.leads()
            await body(store, clock, led)
            led.task.cancel()
            await asyncio.wait([led.task])

    virtual_time.run(main())


@timers
def test_who_was_held_up_leads_on_while_its_key_stands(timers_last: bool) -> None:
    async def body(store: EmbeddedStore, clock: Clock, led: Led) -> None:
        term = led.leadership.term
        for times in (1, 2):
            led.process.pause()
            await clock.sleep(SHORT_S)
            assert not led.leads()
            led.process.resume(timers_last=timers_last)
            await clock.sleep(5 * TTL_S)
            assert not led.task.done()
            assert led.leads()
            assert led.valid_again == times
        leader = await current_leader(store)
        assert leader is not None
        assert leader.term == led.leadership.term == term

    with_a_leader(body)


@timers
def test_who_was_deposed_meanwhile_is_not_valid_again(timers_last: bool) -> None:
    # Its lease lives on, so that renewing it proves nothing.
    async def body(store: EmbeddedStore, clock: Clock, led: Led) -> None:
        led.process.pause()
        await clock.sleep(SHORT_S)
        leader = await current_leader(store)
        assert leader is not None
        assert await depose(store, leader)
        led.process.resume(timers_last=timers_last)
        with pytest.raises(LeadershipLost):
            await led.task
        assert not led.valid_again

    with_a_leader(body)


@timers
def test_who_was_held_up_beyond_its_lease_is_not_valid_again(timers_last: bool) -> None:
    async def body(store: EmbeddedStore, clock: Clock, led: Led) -> None:
        led.process.pause()
        await clock.sleep(LONG_S)
        led.process.resume(timers_last=timers_last)
        with pytest.raises(LeadershipLost):
            await led.task
        assert not led.valid_again

    with_a_leader(body)


@timers
def test_who_was_held_up_and_then_gets_no_answer_stops_soon(timers_last: bool) -> None:
    async def body(store: EmbeddedStore, clock: Clock, led: Led) -> None:
        led.process.pause()
        await clock.sleep(SHORT_S)
        led.link.hangs = True
        resumed_at = clock.monotonic()
        led.process.resume(timers_last=timers_last)
        with pytest.raises(LeadershipLost):
            await led.task
        assert clock.monotonic() - resumed_at < TTL_S / 4
        assert not led.valid_again

    with_a_leader(body)
