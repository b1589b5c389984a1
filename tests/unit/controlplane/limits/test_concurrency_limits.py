"""Turns go round, and none is lost."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from controlplane.limits.concurrency_limits import Turns

KIM, EVE = "kim", "eve"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=30))
def test_turns_go_round_and_none_is_lost(calls: list[tuple[str, bool]]) -> None:
    async def play() -> list[str]:
        turns, order = Turns("to read", most_waiting=100), list[str]()

        async def one(who: str) -> None:
            async with turns.turn(who):
                order.append(who)
                await asyncio.sleep(0)

        async with turns.turn("holder"):
            tasks = [asyncio.ensure_future(one(who)) for who, _ in calls]
            await asyncio.sleep(0)
            for task, (_, is_cancelled) in zip(tasks, calls, strict=True):
                if is_cancelled:
                    task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(60), turns.turn("last"):
            return order

    order = asyncio.run(play())
    stayed = [who for who, is_cancelled in calls if not is_cancelled]
    assert sorted(order) == sorted(stayed)
    # Between two turns of one caller each other one who waits has one.
    for who in set(stayed):
        places = [n for n, other in enumerate(order) if other == who]
        for before, after in pairwise(places):
            between = order[before + 1 : after]
            waiting = set(order[after:]) - {who}
            assert waiting <= set(between)
            assert len(between) == len(set(between))


async def test_a_turn_that_comes_as_its_call_ends_is_passed_on() -> None:
    turns = Turns("to read")
    async with turns.turn(KIM):
        ended = asyncio.ensure_future(_holding(turns, EVE))
        await asyncio.sleep(0)
        next_one = asyncio.ensure_future(_holding(turns, KIM))
        await asyncio.sleep(0)
    ended.cancel()  # its turn was given, and it has not run since
    async with asyncio.timeout(60):
        await next_one


async def _holding(turns: Turns, who: str) -> None:
    async with turns.turn(who):
        pass


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=40),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_no_more_than_slots_hold_it_and_of_one_caller_no_more_than_each(
    calls: list[str], slots: int, each: int
) -> None:
    async def play() -> int:
        turns, holding, most = Turns("to read", slots=slots, each=each), list[str](), 0

        async def one(who: str) -> None:
            nonlocal most
            async with turns.turn(who):
                holding.append(who)
                assert len(holding) <= slots
                assert holding.count(who) <= each
                most = max(most, len(holding))
                await asyncio.sleep(0)
                holding.remove(who)

        await asyncio.gather(*map(one, calls))
        return most

    most = asyncio.run(play())
    assert most == min(slots, sum(min(each, calls.count(who)) for who in set(calls)))
