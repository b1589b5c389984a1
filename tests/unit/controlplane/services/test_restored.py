"""Agents that come back to a platform that was restored from a backup."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from controlplane.domain.cluster import LIFE, Restore
from controlplane.domain.identity import Role
from controlplane.store.revision_offset import ContinuedStore
from nsml.v1 import nodes_pb2
from tests.unit.controlplane.rig import (
    Rig,
    Stubs,
    one_leads,
    report_of,
    serving,
    surroundings,
    until,
)

AFTER = 50
"""The last revision of the backup."""


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with surroundings() as before:
        store = ContinuedStore(before.store, LIFE)
        restores = (Restore(after=AFTER, offset=LIFE),)
        async with (
            surroundings(store=store, history=before.history, restores=restores) as on,
            serving(on) as rig,
        ):
            await until(lambda: one_leads(rig), "it leads")
            yield rig


async def state(root: Stubs) -> str:
    answer = await root.nodes.GetNode(nodes_pb2.GetNodeRequest(name="a"))
    return nodes_pb2.NodeState.Name(answer.node.state).removeprefix("NODE_STATE_")


@pytest.mark.parametrize(
    ("term", "has_it", "expected"),
    [
        (AFTER, True, "READY"),
        (AFTER + 1, True, "READY"),
        (AFTER, False, "READY"),
        (AFTER + 1, False, "HELD"),
        (LIFE - 1, False, "HELD"),
    ],
    ids=["old orders", "agrees", "ended with the backup", "lacks", "long after"],
)
async def test_who_obeyed_what_is_lost_is_held_unless_both_agree(
    rig: Rig, term: int, has_it: bool, expected: str
) -> None:
    root = await rig.user("root", role=Role.ADMIN)
    session = await root.submit()
    first = await (await rig.agent()).connect()
    [order] = await first.assignments(1)
    await first.report(order.replica, "RUNNING")
    await root.reaches(session.name, "RUNNING")
    assert first.orders is not None
    assert first.orders.term > LIFE
    await first.close()

    running = (report_of(order.replica, "RUNNING"),) if has_it else ()
    facts: dict[str, Any] = {"highest_term": term, "highest_revision": term}
    second = await (await rig.agent(replicas=running, **facts)).connect()
    assert second.registered is not None, second.error
    assert not second.registered.starts_anew
    assert await state(root) == expected
    if expected == "HELD":
        assert await root.state(session.name) == "RUNNING", (
            "nothing is given up before a person looks"
        )
        await root.nodes.ResumeNode(nodes_pb2.ResumeNodeRequest(name="a"))
        await until(lambda: _is_open(root), "it is open")
    elif has_it:
        assert await root.state(session.name) == "RUNNING"
        assert len(await second.assignments(1)) == 1
    else:
        await root.reaches(session.name, "FAILED")


async def _is_open(root: Stubs) -> bool:
    return await state(root) != "HELD"
