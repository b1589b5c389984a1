"""When a certificate is renewed, and what becomes of connections."""

from __future__ import annotations

import asyncio

import pytest

from nodeagent.link.channels import Link
from nodeagent.link.renewal import DAY_S, RETRY_S, keep_renewed
from nsml.client.errors import Unavailable


class Channel:
    closed = False

    async def close(self) -> None:
        self.closed = True


class Slept(Exception):
    """The pauses that were wanted are over."""


class PausesClock:
    def __init__(self, count: int) -> None:
        self.pauses: list[float] = []
        self.count = count

    def time(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == self.count:
            raise Slept


async def test_asks_daily_and_sooner_after_a_failure() -> None:
    answers = iter([False, Unavailable("away"), OSError("full"), ValueError("damaged"), True])
    made: list[Channel] = []

    def factory(_: str, **__: bool) -> Channel:
        made.append(Channel())
        return made[-1]

    async def renew(_: str) -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        link.ways.channel("a:1")
        return answer

    link = Link(["a:1"], channel_factory=factory)  # type: ignore[arg-type]
    clock = PausesClock(5)
    with pytest.raises(Slept):
        await keep_renewed(renew, link, clock)
    assert clock.pauses == [DAY_S, RETRY_S, RETRY_S, RETRY_S, DAY_S]
    link.ways.channel("a:1")
    link.ways.channel("a:1")
    assert [channel.closed for channel in made] == [False, False]
    await link.close()
    assert [channel.closed for channel in made] == [True, True]


async def test_is_part_of_its_agents_life() -> None:
    """Cancelled in its sleep, it ends."""

    async def renew(_: str) -> bool:
        return False

    class Forever(PausesClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.Event().wait()

    link = Link(["a:1"], channel_factory=lambda _, **__: Channel())  # type: ignore[arg-type,return-value]
    task = asyncio.create_task(keep_renewed(renew, link, Forever(0)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_any_control_plane_renews() -> None:
    asked: list[str] = []

    async def renew(address: str) -> bool:
        asked.append(address)
        if len(asked) == 1:
            raise Unavailable("away")
        return True

    link = Link(["a:1", "b:1"], channel_factory=lambda _, **__: Channel())  # type: ignore[arg-type,return-value]
    clock = PausesClock(1)
    with pytest.raises(Slept):
        await keep_renewed(renew, link, clock)
    assert sorted(asked) == ["a:1", "b:1"]
    assert clock.pauses == [DAY_S]
