"""Devices as letters and digits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsml.common.text import width
from nsml.v1 import nodes_pb2
from nsml.v1.resources_pb2 import Device, DeviceSample
from nsml.view.heat_map import (
    LETTER,
    MARKS,
    MOST_CELLS,
    SPACED,
    VALUE,
    Heat,
    Holder,
    Measure,
    grid_of,
    owners_of,
)

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
    [line] = heat.lines(node(*uses, state=state), LETTER)
    return "".join(cell.letter for cell in line)


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


@given(
    st.integers(0, 40),
    st.integers(0, 300),
    st.integers(0, 60),
    st.lists(st.text(max_size=40), min_size=1, max_size=5),
    st.sampled_from(Measure),
)
def test_a_node_stays_in_its_cells_whatever_room_there_is(count, room, height, names, measure):
    every = [node(*[use(utilization_percent=100)] * count, name=name) for name in names]
    grid = grid_of(every, room, height)
    assert grid.across >= 1
    holders = {"kim/a/1": Holder("kim", 0.0, is_zombie=False)}
    heat = Heat(measure=measure, now=NOW, holders=holders, letters=owners_of(holders))
    for one in every:
        assert width(grid.title(one)) == grid.titles.cells
        lines = heat.lines(one, grid.each)
        assert len(lines) <= grid.lines
        assert len(lines[0]) == min(count, MOST_CELLS)
        assert all(width(cell.letter) == grid.each for line in lines for cell in line)
    assert all(mark in heat.legend(grid.each) for mark in MARKS)


def cluster(count, name="gpu-{:03d}"):
    return [node(*[use()] * 8, name=name.format(number)) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "room", "height", "each", "whole"),
    [
        (5, 80, 11, VALUE, True),
        (5, 120, 25, 13, True),
        (5, 200, 44, 20, True),
        (128, 80, 10, LETTER, True),  # the rest is scrolled to
        (128, 120, 25, LETTER, True),
        (128, 200, 45, VALUE, True),
        (128, 300, 85, 6, True),
    ],
)
def test_cells_are_as_large_as_there_is_room_for(count, room, height, each, whole):
    grid = grid_of(cluster(count), room, height)
    assert grid.each == each
    assert (grid.titles.of("gpu-000") == "gpu-000") is whole
    assert (grid.height(count) <= height) is ((count, room) != (128, 80))


@pytest.mark.parametrize(
    ("name", "room", "title"),
    [
        ("dgx-rack-node-{:03d}.example.org", 300, "dgx-rack-node-003.example.org"),
        ("dgx-rack-node-{:03d}.example.org", 150, "dgx-rack-node-003"),
        ("dgx-rack-node-{:03d}.example.org", 120, "…de-003"),
        ("{:03d}-node-of-the-rack", 120, "003…ack"),
    ],
)
def test_names_are_cut_so_that_they_tell_nodes_apart(name, room, title):
    every = cluster(128, name)
    grid = grid_of(every, room, 40 if room > 120 else 25)
    assert grid.title(every[3]).rstrip() == title
    assert len({grid.title(one) for one in every}) == len(every)


def test_what_is_measured_is_told_and_who_holds_it():
    holders = {
        "kim/mnist/1": Holder("kim", NOW - 7_200, is_zombie=False),
        "lee/a-long-name/12": Holder("lee", NOW - 60, is_zombie=False),
    }
    one = node(
        use("kim/mnist/1", utilization_percent=98, power_watts=402.4, temperature_celsius=67),
        use("lee/a-long-name/12", utilization_percent=100, power_watts=99, temperature_celsius=5),
        use("", utilization_percent=0),
        use("somebody", sample=False),
    )
    one.devices[0].sessions.append("kim/mnist/2")
    one.devices[3].sessions[0] = ""

    def told(measure, each):
        heat = Heat(measure=measure, now=NOW, holders=holders, letters=owners_of(holders))
        lines = heat.lines(one, each)
        return ["".join(cell.letter for cell in line).rstrip() for line in lines]

    assert told(Measure.UTILIZATION, SPACED) == ["9 9 . ?"]
    assert told(Measure.UTILIZATION, VALUE) == [" 98 100   .   ?"]
    assert told(Measure.OWNER, VALUE) == ["  k   l   .   ?"]
    assert told(Measure.AGE, VALUE) == [" 2h  1m   .   ?"]
    assert told(Measure.POWER, 6) == ["402 W 99 W  free  ?", "kim   lee         othe…"]
    assert told(Measure.TEMPERATURE, 13) == [
        "67°C         5°C          free         not measured",
        "kim/…st/1 +1 lee/a-…me/12              others",
    ]
    assert told(Measure.OWNER, 6) == ["kim   lee   free  ?", "2h    1m          othe…"]
