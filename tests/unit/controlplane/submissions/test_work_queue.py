"""The order in which submissions are looked at."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.submissions.work_queue import URGENT_TOGETHER, WorkQueue


async def taken(queue: WorkQueue) -> str:
    async with asyncio.timeout(60), queue.next() as one:
        return one


async def test_what_has_news_goes_before_what_a_sweep_found() -> None:
    queue = WorkQueue()
    queue.add(["a", "b", "c"])
    queue.add_urgent(["c", "d"])
    queue.add(["d"])
    assert [await taken(queue) for _ in range(4)] == ["c", "d", "a", "b"]


async def test_others_have_their_turn_however_many_have_news() -> None:
    queue = WorkQueue()
    queue.add(["new"])
    seen = []
    while "new" not in seen:
        queue.add_urgent(["a", "b"])
        seen.append(await taken(queue))
    assert len(seen) == URGENT_TOGETHER + 1


async def test_one_that_is_looked_at_waits_and_has_another_turn() -> None:
    queue = WorkQueue()
    queue.add_urgent(["a"])
    async with queue.next() as one:
        assert one == "a"
        queue.add_urgent(["a"])
        queue.add(["b"])
        assert await taken(queue) == "b"
    assert await taken(queue) == "a"


async def test_a_worker_that_fails_gives_its_turn_back() -> None:
    queue = WorkQueue()
    queue.add(["a"])
    held: list[str] = []
    with pytest.raises(IndexError):
        async with queue.next():
            len(held[0])
    queue.add(["a"])
    assert await taken(queue) == "a"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60), st.integers(1, 4))
def test_each_that_is_added_is_looked_at_after_that_by_one_worker_at_a_time(
    adds: list[tuple[bool, int]], workers: int
) -> None:
    asyncio.run(_check(adds, workers))


async def _check(adds: list[tuple[bool, int]], workers: int) -> None:
    queue, held = WorkQueue(), set[str]()
    added, looked_at = dict[str, int](), dict[str, int]()
    clock = 0

    async def work() -> None:
        nonlocal clock
        while True:
            async with queue.next() as one:
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
        (queue.add_urgent if is_urgent else queue.add)([name])
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
