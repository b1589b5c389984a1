"""Projects when others write at the same time, or the watch has not told of it yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from controlplane.domain.errors import NotFound, StillLive
from controlplane.domain.identity import User, UserCaller
from controlplane.domain.values import Project
from controlplane.projects.projects import Projects
from controlplane.state.live_state import LiveState
from controlplane.store.interface import Delete, Put, Transaction
from controlplane.stored import etcd_codec
from tests.unit.controlplane.builders import session
from tests.unit.controlplane.workbench import Bench, bench

VISION = Project(name="vision", owner="kim", members=frozenset({"kim", "lee"}))
OWN = Project(name="kim", owner="kim", members=frozenset({"kim"}))


class Interrupted:
    """A store in which somebody else writes right before the first commit."""

    def __init__(self, store: Any, others: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._others: Callable[[], Awaitable[None]] | None = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, transaction: Transaction) -> Any:
        others, self._others = self._others, None
        if others is not None:
            await others()
        return await self._store.commit(transaction)


def projects_of(made: Bench, state: LiveState, store: Any = None) -> Projects:
    users: Any = None
    return Projects(store=store or made.store, state=state, users=users, clock=made.clock)


async def write(made: Bench, *projects: Project) -> None:
    for one in projects:
        put = Put(key=etcd_codec.project_key(one.name), value=etcd_codec.encode_project(one))
        await made.store.commit(Transaction(success=(put,)))


async def stored(made: Bench) -> list[Project]:
    items = (await made.store.list(etcd_codec.PROJECTS)).items
    return [etcd_codec.decode_project(item.value) for item in items]


async def test_who_is_removed_is_no_member_though_the_watch_has_not_told_of_it() -> None:
    async with bench() as made:
        behind = LiveState(made.store, made.clock)
        await write(made, VISION, OWN)
        await projects_of(made, behind).forget_user("kim")
        [left] = await stored(made)
        assert (left.name, left.owner, left.members) == ("vision", "", frozenset({"lee"}))


@pytest.mark.parametrize("is_removed", [False, True])
async def test_who_is_removed_is_no_member_of_what_others_change_meanwhile(
    is_removed: bool,
) -> None:
    async with bench() as made:
        state = LiveState(made.store, made.clock)
        await write(made, OWN, VISION)

        async def others() -> None:
            if is_removed:
                keys = [Delete(key=etcd_codec.project_key(one)) for one in ("kim", "vision")]
                await made.store.commit(Transaction(success=tuple(keys)))
            else:
                await write(made, replace(OWN, weight=2.0), replace(VISION, weight=2.0))

        store = Interrupted(made.store, others)
        await projects_of(made, state, store).forget_user("kim")
        left = [(one.name, one.members) for one in await stored(made)]
        assert left == ([] if is_removed else [("vision", frozenset({"lee"}))])


async def test_to_who_was_taken_out_meanwhile_a_project_is_not_there() -> None:
    async with bench() as made:
        state = await made.member()
        await write(made, VISION)
        await made.settled(state)

        async def others() -> None:
            await write(made, replace(VISION, owner="park", members=frozenset({"park", "lee"})))
            await made.settled(state)

        projects = projects_of(made, state, Interrupted(made.store, others))
        kim = UserCaller(user=User(name="kim"))
        with pytest.raises(NotFound) as hidden:
            await projects.change_members("vision", add=(), remove=["lee"], asked_by=kim)
        with pytest.raises(NotFound) as absent:
            await projects.change_members("visiom", add=(), remove=["lee"], asked_by=kim)
        assert hidden.value.message == absent.value.message.replace("visiom", "vision")
        assert hidden.value.details == absent.value.details


async def test_a_project_with_a_session_that_was_just_submitted_stays() -> None:
    async with bench() as made:
        state = await made.member()
        await write(made, VISION)
        await made.settled(state)
        one = session(project="vision")
        put = Put(key=etcd_codec.session_key(one.id), value=etcd_codec.encode_session(one))
        await made.store.commit(Transaction(success=(put,)))
        assert state.session(one.id) is None
        with pytest.raises(StillLive):
            await projects_of(made, state).delete("vision")
        assert [known.name for known in await stored(made)] == ["vision"]
