"""Work goes on without the calls that wait for it, and ends with the control plane."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.content.shared_tasks import SharedTasks
from controlplane.domain.errors import InvalidRequest, NotFound, Unavailable


class Work:
    """Fails once it may."""

    def __init__(self, error: Exception) -> None:
        self.begun = 0
        self.is_begun, self.may_go, self.is_over = (asyncio.Event() for _ in range(3))
        self._error = error

    async def __call__(self) -> None:
        self.begun += 1
        self.is_begun.set()
        try:
            await self.may_go.wait()
            raise self._error
        finally:
            self.is_over.set()


async def unheard(work: Work) -> SharedTasks[str, None]:
    tasks: SharedTasks[str, None] = SharedTasks("it is being read")
    for _ in range(2):
        with pytest.raises(Unavailable, match="it is being read"):
            await tasks.result("key", work, within_s=0.0)
    work.may_go.set()
    await work.is_over.wait()
    await asyncio.sleep(0)  # the end of its task
    await asyncio.sleep(0)
    assert work.begun == 1
    return tasks


async def test_a_refusal_that_nobody_heard_is_told_once() -> None:
    work = Work(InvalidRequest("it takes too much"))
    tasks = await unheard(work)
    for begun in (1, 2):
        with pytest.raises(InvalidRequest):
            await tasks.result("key", work, within_s=None)
        assert work.begun == begun


async def test_what_may_have_passed_is_tried_again() -> None:
    work = Work(NotFound("a page is missing"))
    tasks = await unheard(work)
    with pytest.raises(NotFound):
        await tasks.result("key", work, within_s=None)
    assert work.begun == 2


async def test_it_ends_with_the_control_plane() -> None:
    work, tasks = Work(NotFound("")), SharedTasks[str, None]("it is being read")
    running = asyncio.ensure_future(tasks.run())
    waiting = asyncio.ensure_future(tasks.result("key", work, within_s=None))
    await work.is_begun.wait()
    running.cancel()
    with pytest.raises(Unavailable, match="stops"):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.is_over.is_set()
