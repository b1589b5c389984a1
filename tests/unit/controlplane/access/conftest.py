"""A platform's door on real gRPC servers, over the embedded store in memory."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from controlplane.access.accounts import Accounts
from controlplane.access.authority import Authority, make_authority
from controlplane.access.failed_attempts import FailureLimiter
from controlplane.access.identities import Identities
from controlplane.access.joining import Joining
from controlplane.store.embedded import EmbeddedStore
from nsml.common.clock import inline


@dataclass
class HandClock:
    """Wall and monotonic time that tests move; sleeping is real, so that loops go on."""

    now: float = 1_900_000_000.0
    passed: float = field(default=1000.0)

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.passed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.passed += seconds


@dataclass(frozen=True)
class Door:
    """Everything that access is made of."""

    store: EmbeddedStore
    clock: HandClock
    identities: Identities
    accounts: Accounts
    joining: Joining
    authority: Authority
    limiter: FailureLimiter


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@contextlib.asynccontextmanager
async def open_door(clock: HandClock) -> AsyncIterator[Door]:
    authority = make_authority(clock)
    async with EmbeddedStore(":memory:", clock=clock, run=inline) as store:
        identities = Identities(store, clock)
        following = asyncio.create_task(identities.run())
        try:
            yield Door(
                store=store,
                clock=clock,
                identities=identities,
                accounts=Accounts(store, identities, clock=clock, random_bytes=secrets.token_bytes),
                joining=Joining(store, authority, clock=clock, random_bytes=secrets.token_bytes),
                authority=authority,
                limiter=FailureLimiter(clock),
            )
        finally:
            following.cancel()
            await asyncio.wait([following])


@pytest.fixture
async def door(clock: HandClock) -> AsyncIterator[Door]:
    async with open_door(clock) as opened:
        yield opened
