"""Nodes in one state are looked at once, and the words are those of a look at each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.values import Allocation, Drain, Isolation, Node
from controlplane.scheduler import explain
from controlplane.scheduler.fit import request_of
from controlplane.scheduler.node_capacity import alone
from controlplane.scheduler.node_index import NodeIndex
from tests.support.examples import examples
from tests.unit.controlplane.builders import GIB, held, node, session


@st.composite
def machines(draw: st.DrawFn) -> list[tuple[Node, Allocation]]:
    kinds = [
        node("kind", 4, pod="p"),
        node("kind", 4, isolation=Isolation.CONTAINER),
        node("kind", 2, model="A", pod="q"),
        node("kind", 8, cpu=4000, memory=8 * GIB, owner="lee", isolation=Isolation.NONE, pod="p"),
    ]
    found = []
    for number in range(draw(st.integers(1, 8))):
        name, kind = f"n{number}", draw(st.sampled_from(kinds))
        unwell = draw(st.sampled_from([-1, -1, -1, 0]))
        devices = tuple(
            replace(one, uuid=f"{name}-{one.index}", withheld="hot" if one.index == unwell else "")
            for one in kind.devices
        )
        drain = draw(st.sampled_from([None, None, None, None, Drain(asked_by="root")]))
        machine = replace(kind, name=name, devices=devices, drain=drain)
        parts = draw(st.sampled_from([[], [1000], [500, 1000], [500, 500]]))
        shares = [(one.uuid, part) for one, part in zip(devices, parts, strict=False)]
        cpu = draw(st.sampled_from([0, 3000]))
        found.append((machine, replace(held(name, *shares, cpu=cpu), node=name)))
    return found


@settings(max_examples=examples(200), deadline=None)
@given(machines(), st.data())
def test_words_are_those_of_a_look_at_each_node(
    cluster: list[tuple[Node, Allocation]], data: st.DataObject
) -> None:
    rooms = NodeIndex()
    for machine, allocation in cluster:
        rooms.set(machine, allocation, is_silent=data.draw(st.sampled_from([False] * 5 + [True])))
    wanted = session(
        data.draw(st.sampled_from([0, 500, 1000, 2000, 4000])),
        data.draw(st.sampled_from([1, 1, 2, 6])),
        owner=data.draw(st.sampled_from(["kim", "lee"])),
        cpu=data.draw(st.sampled_from([0, 2000, 6000])),
        spec={"gpu_model": data.draw(st.sampled_from(["", "A"]))},
    )
    request = request_of(wanted.owner, wanted.spec)
    found = explain.explain(rooms, request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(explain, "_ties", lambda rooms, _: [alone(room) for room in rooms])
        assert explain.explain(rooms, request) == found
