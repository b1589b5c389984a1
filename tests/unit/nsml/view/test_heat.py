"""Devices as letters and digits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.v1 import nodes_pb2
from nsml.v1.resources_pb2 import Device, DeviceSample
from nsml.view.heat import MARKS, MOST_CELLS, Heat, Holder, Measure, grid_of, owners_of

NOW = 100_000.0


def use(session="kim/a/1", *, sample=True, withheld="", **measured):
    device = Device(uuid="u", memory_bytes=100, withheld=withheld)
    held = 1_000 if session else 0
    one = nodes_pb2.DeviceUse(device=device, allocated_thousandths=held)
    if session:
        one.sessions.append(session)
    if sample:
        one.sample.CopyFrom(DeviceSample(**measured))
    return one


def node(*uses, name="n1", state=nodes_pb2.NODE_STATE_READY):
    return nodes_pb2.Node(name=name, state=state, devices=uses)


def letters(measure, *uses, is_zombie=False, since=NOW, state=nodes_pb2.NODE_STATE_READY):
    holders = {"kim/a/1": Holder("kim", since, is_zombie)}
    heat = Heat(measure=measure, now=NOW, holders=holders, letters=owners_of(holders))
    return "".join(cell.letter for cell in heat.cells(node(*uses, state=state)))


@pytest.mark.parametrize(
    ("measure", "measured", "letter"),
    [
        (Measure.UTILIZATION, {"utilization_percent": 100}, "9"),
        (Measure.UTILIZATION, {"utilization_percent": 35}, "3"),
        (Measure.MEMORY, {"memory_used_bytes": 71}, "7"),
        (Measure.TEMPERATURE, {"temperature_celsius": 73}, "7"),
        (Measure.TEMPERATURE, {"temperature_celsius": 12}, "0"),
        (Measure.POWER, {"power_watts": 402}, "4"),
        (Measure.OWNER, {}, "k"),
    ],
)
def test_a_device_has_the_level_of_what_is_measured(measure, measured, letter):
    assert letters(measure, use(**measured)) == letter


@pytest.mark.parametrize(("held_s", "letter"), [(60, "m"), (7_200, "h"), (200_000, "d")])
def test_for_how_long_it_is_held_has_a_letter(held_s, letter):
    assert letters(Measure.AGE, use(), since=NOW - held_s) == letter


def test_what_is_out_of_the_ordinary_stands_in_place_of_a_level():
    uses = use(""), use(sample=False), use(ecc_uncorrected=1), use("", withheld="broken")
    assert letters(Measure.UTILIZATION, *uses) == ".?!W"
    assert letters(Measure.UTILIZATION, use(), is_zombie=True) == "Z"
    assert letters(Measure.OWNER, use(), state=nodes_pb2.NODE_STATE_SILENT) == "X"
    assert letters(Measure.OWNER, use("of/somebody/else"), use("")) == "?."


def test_each_owner_has_a_letter_until_there_are_no_more():
    names = [f"{chr(97 + n % 3)}{n}" for n in range(30)]
    given_to = owners_of({name: Holder(name, 0.0, is_zombie=False) for name in names})
    unique = [one for one in given_to.values() if one != "+"]
    assert len(unique) == len(set(unique)) == 26
    assert owners_of({"x": Holder("", 0.0, is_zombie=False)})[""] == "a"


@given(st.integers(0, 200), st.integers(0, 300), st.text(max_size=40))
def test_cells_of_a_node_stay_in_its_room(count, room, name):
    one = node(*[use() for _ in range(count)], name=name)
    grid = grid_of([one], room)
    holders = {"kim/a/1": Holder("kim", 0.0, is_zombie=False)}
    heat = Heat(measure=Measure.OWNER, now=NOW, holders=holders, letters=owners_of(holders))
    assert len(heat.cells(one)) == min(count, MOST_CELLS)
    assert grid.across >= 1
    assert all(mark in heat.legend() for mark in MARKS)


def test_a_thousand_devices_fit_into_a_terminal():
    every = [node(*[use() for _ in range(8)], name=f"gpu-{n:03d}") for n in range(128)]
    assert -(-128 // grid_of(every, 120).across) <= 22
