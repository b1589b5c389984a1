"""Followers are woken by commits to what they follow alone, and by those before they wait as well."""

from __future__ import annotations

import asyncio

from controlplane.history.subscriptions import Changes


async def test_a_follower_is_woken_by_each_thing_it_follows_and_by_no_other() -> None:
    changes = Changes()
    with changes.follow("a") as one, changes.follow("a", "b", "b") as both:
        changes.tell({"b"})
        await asyncio.wait_for(both.wait(), 60)
        waiting = asyncio.create_task(one.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        changes.tell({"a", "c"})
        await asyncio.wait_for(waiting, 60)
        await asyncio.wait_for(both.wait(), 60)


async def test_who_waits_for_a_while_goes_on_with_or_without_a_commit() -> None:
    changes = Changes()
    with changes.follow("a") as change:
        await change.wait_for(0.01)
        waiting = asyncio.create_task(change.wait_for(3_600.0))
        await asyncio.sleep(0)
        changes.tell({"a"})
        await asyncio.wait_for(waiting, 60)


async def test_nothing_is_kept_of_a_follower_that_left() -> None:
    changes = Changes()
    with changes.follow("a", "b", "a"):
        pass
    assert changes._followers == {}
    changes.tell({"a"})
