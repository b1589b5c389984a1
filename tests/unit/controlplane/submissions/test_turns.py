"""The order in which submissions are looked at."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.submissions.turns import Turns


async def taken(turns: Turns) -> str:
    async with asyncio.timeout(60), turns.next() as one:
        return one


async def test_what_has_news_goes_before_what_a_sweep_found() -> None:
    turns = Turns()
    turns.add(["a", "b", "c"])
    turns.add_urgent(["c", "d"])
    turns.add(["d"])
    assert [await taken(turns) for _ in range(4)] == ["c", "d", "a", "b"]


async def test_one_that_is_looked_at_waits_and_has_another_turn() -> None:
    turns = Turns()
    turns.add_urgent(["a"])
    async with turns.next() as one:
        assert one == "a"
        turns.add_urgent(["a"])
        turns.add(["b"])
        assert await taken(turns) == "b"
    assert await taken(turns) == "a"


async def test_a_worker_that_fails_gives_its_turn_back() -> None:
    turns = Turns()
    turns.add(["a"])
    held: list[str] = []
    with pytest.raises(IndexError):
        async with turns.next():
            len(held[0])
    turns.add(["a"])
    assert await taken(turns) == "a"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60), st.integers(1, 4))
def test_each_that_is_added_is_looked_at_after_that_by_one_worker_at_a_time(
    adds: list[tuple[bool, int]], workers: int
) -> None:
    asyncio.run(_check(adds, workers))


async def _check(adds: list[tuple[bool, int]], workers: int) -> None:
    turns, held = Turns(), set[str]()
    added, looked_at = dict[str, int](), dict[str, int]()
    clock = 0

    async def work() -> None:
        nonlocal clock
        while True:
            async with turns.next() as one:
                assert one not in held
                held.add(one)
                clock += 1
                looked_at[one] = clock
                await asyncio.sleep(0)
                held.discard(one)

    tasks = [asyncio.create_task(work()) for _ in range(workers)]
    for is_urgent, number in adds:
        name = str(number)
        clock += 1
        added[name] = clock
        (turns.add_urgent if is_urgent else turns.add)([name])
        if number % 2:
            await asyncio.sleep(0)
    async with asyncio.timeout(60):
        while held or any(looked_at.get(one, 0) < at for one, at in added.items()):
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
