"""Devices come, go and are withheld at random: none is doubly allocated, none withheld is given."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from controlplane.domain.changes import (
    AllocationChanged,
    NodeChanged,
    SessionChanged,
    SessionRemoved,
)
from controlplane.domain.values import WHOLE_DEVICE, Allocation, Device, Session
from controlplane.sessions.placement import place
from controlplane.state.draft import Draft
from controlplane.stored.etcd_codec import decode_node, encode_node
from tests.support.examples import examples
from tests.unit.controlplane.builders import node, session
from tests.unit.controlplane.snapshot import ClusterSnapshot, schedule

NODES = ("a", "b")


@dataclass
class Live:
    """What is live, without a store."""

    nodes: dict[str, Any] = field(default_factory=dict)
    allocations: dict[str, Any] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)

    def session(self, session_id: str) -> Session | None:
        return self.sessions.get(session_id)


class Devices(RuleBasedStateMachine):
    """A cluster whose devices change while plans that were made before are carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.live = Live()
        self.snapshot = ClusterSnapshot()
        self.plan = schedule(self.snapshot, 0.0)

    @initialize()
    def begin(self) -> None:
        for name in NODES:
            self._put_node(node(name, 3))

    def _put_node(self, one: Any) -> None:
        self.live.nodes[one.name] = SimpleNamespace(value=one)
        self.snapshot = self.snapshot.apply([NodeChanged(node=one)])

    @rule(
        name=st.sampled_from(NODES),
        states=st.lists(st.sampled_from(["offered", "withheld", "gone", "cut"]), max_size=4),
    )
    def change(self, name: str, states: list[str]) -> None:
        """All that an agent may say of its devices: it lists instances that are held, made or not."""
        devices: list[Device] = []
        for index, state in enumerate(states):
            whole = Device(uuid=f"{name}-{index}", index=index, model="M")
            match state:
                case "offered":
                    devices.append(whole)
                case "withheld":
                    devices.append(replace(whole, withheld="it failed"))
                case "cut":
                    devices += [
                        Device(uuid=f"MIG-{whole.uuid}-{i}", index=i, parent_uuid=whole.uuid)
                        for i in (0, 1)
                    ]
        listed = {device.uuid for device in devices}
        devices += [
            Device(uuid=uuid, index=9, parent_uuid=_parent(uuid), withheld="it is gone")
            for uuid in self._held_on(name)
            if uuid.startswith("MIG-") and uuid not in listed
        ]
        self._put_node(replace(self.live.nodes[name].value, devices=tuple(devices)))

    def _held_on(self, name: str) -> dict[str, int]:
        stored = self.live.allocations.get(name)
        return stored.value.held_thousandths() if stored else {}

    @rule(gpu=st.sampled_from([100, 500, 700, 1000, 2000]), replicas=st.sampled_from([1, 1, 2]))
    def submit(self, gpu: int, replicas: int) -> None:
        self._put_session(session(gpu, replicas=replicas, cpu=1, memory=1))

    def _put_session(self, one: Session) -> None:
        self.live.sessions[one.id] = one
        self.snapshot = self.snapshot.apply([SessionChanged(session=one)])

    @rule()
    def decide(self) -> None:
        """A plan, which may be carried out much later."""
        self.plan = schedule(self.snapshot, 0.0)

    @rule()
    def carry_out(self) -> None:
        for placement in self.plan.placements:
            draft = Draft(self.live)  # type: ignore[arg-type]
            if not place(draft, placement, 0.0):
                continue
            for replica in placement.replicas:
                for share in replica.devices:
                    self._check_given(replica.node, share.uuid)
            for name in {replica.node for replica in placement.replicas}:
                self._put_allocation(draft.allocation(name))
            placed = draft.session(placement.session_id)
            assert placed is not None
            self._put_session(placed)

    def _check_given(self, name: str, uuid: str) -> None:
        known = {device.uuid: device for device in self.live.nodes[name].value.devices}
        assert uuid in known, f"{uuid} is not there"
        assert not known[uuid].withheld, f"{uuid} is withheld"

    def _put_allocation(self, allocation: Allocation) -> None:
        self.live.allocations[allocation.node] = SimpleNamespace(value=allocation)
        self.snapshot = self.snapshot.apply([AllocationChanged(allocation=allocation)])

    def _running(self) -> list[str]:
        return sorted(
            {
                held.session_id
                for stored in self.live.allocations.values()
                for held in stored.value.replicas
            }
        )

    @precondition(lambda self: self._running())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ended = data.draw(st.sampled_from(self._running()))
        for stored in list(self.live.allocations.values()):
            left = tuple(one for one in stored.value.replicas if one.session_id != ended)
            self._put_allocation(replace(stored.value, replicas=left))
        del self.live.sessions[ended]
        self.snapshot = self.snapshot.apply([SessionRemoved(session_id=ended)])

    @invariant()
    def no_device_is_doubly_allocated(self) -> None:
        held: Counter[str] = Counter()
        wholes: Counter[str] = Counter()
        for stored in self.live.allocations.values():
            for uuid, thousandths in stored.value.held_thousandths().items():
                held[uuid] += thousandths
                if uuid.startswith("MIG-"):
                    wholes[_parent(uuid)] |= 2
                else:
                    wholes[uuid] |= 1
        note(f"{held}")
        assert all(sum_ <= WHOLE_DEVICE for sum_ in held.values()), held
        assert 3 not in wholes.values(), f"a whole and its part are held: {held}"

    @invariant()
    def the_snapshot_is_what_a_fresh_one_would_be(self) -> None:
        nodes = [NodeChanged(node=stored.value) for stored in self.live.nodes.values()]
        allocations = [
            AllocationChanged(allocation=stored.value) for stored in self.live.allocations.values()
        ]
        sessions = [SessionChanged(session=one) for one in self.live.sessions.values()]
        fresh = ClusterSnapshot().apply([*nodes, *allocations, *sessions])
        assert {name: one.free for name, one in fresh.nodes.items()} == {
            name: one.free for name, one in self.snapshot.nodes.items()
        }


def _parent(instance: str) -> str:
    return instance.removeprefix("MIG-").rsplit("-", 1)[0]


TestDevices = Devices.TestCase
TestDevices.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


@given(st.text(max_size=20), st.text(max_size=20))
def test_what_is_withheld_is_stored(why: str, parent: str) -> None:
    device = Device(uuid="u", index=1, withheld=why, parent_uuid=parent)
    one = replace(node("a"), devices=(device, *node("a", 1).devices))
    assert decode_node(encode_node(one)).devices == one.devices
