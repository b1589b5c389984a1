"""All devices at a glance: a letter or a digit each, so that no colour is needed to read it. Pure."""

from __future__ import annotations

import string
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from nsml.v1 import nodes_pb2
from nsml.view.nodes import NodeDevice, is_free
from nsml.view.text import fit, fit_middle, pad, visible, width

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsml.v1.nodes_pb2 import Node

MOST_NAME: Final = 14
"""Cells of the name of a node."""
MOST_CELLS: Final = 16
"""Devices of a node that have a cell; of more the last one is a `+`."""
_COOL, _HOT_STEP = 30.0, 6.0
_HOUR_S, _DAY_S = 3_600.0, 86_400.0
_HELD_LITTLE: Final = 2
_HOT: Final = 9


class Measure(StrEnum):
    """What cells tell."""

    UTILIZATION = "util"
    MEMORY = "mem"
    TEMPERATURE = "temp"
    POWER = "power"
    OWNER = "owner"
    AGE = "age"


class Holder(NamedTuple):
    """The session that holds a device."""

    owner: str
    since: float
    is_zombie: bool


class Cell(NamedTuple):
    """A device: its letter, and the colour that it has where there are any, by name."""

    letter: str
    colour: str = ""


MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "X": ("node lost", "red"),
    "!": ("errors", "red"),
    "Z": ("zombie", "red"),
    "W": ("withheld", "yellow"),
    "?": ("not measured", "yellow"),
    ".": ("free", ""),
}
"""What stands in place of a level, and its colour."""
_SCALES: Final[Mapping[Measure, str]] = {
    Measure.UTILIZATION: "0-9: tenths of its time",
    Measure.MEMORY: "0-9: tenths of its memory",
    Measure.TEMPERATURE: "0-9: from 30 °C on, 6 degrees each",
    Measure.POWER: "0-9: hundreds of watts",
    Measure.AGE: "held for m minutes, h hours, d days",
}


def owners_of(holders: Mapping[str, Holder]) -> dict[str, str]:
    """A letter for each owner: of their name where it is free, of the alphabet else; `+` for who comes too late."""
    letters: dict[str, str] = {}
    for owner in sorted({one.owner for one in holders.values()}):
        wanted = [*owner.lower(), *string.ascii_lowercase]
        left = set(string.ascii_lowercase) - {*letters.values()}
        letters[owner] = next((one for one in wanted if one in left), "+")
    return letters


def mark_of(item: NodeDevice, holder: Holder | None) -> str:
    """What is out of the ordinary with a device, or that it is free; "" where it is held and well."""
    sample = item.use.sample
    if item.node.state in {nodes_pb2.NODE_STATE_SILENT, nodes_pb2.NODE_STATE_FENCED}:
        return "X"
    if sample.ecc_uncorrected or sample.last_xid:
        return "!"
    if holder is not None and holder.is_zombie:
        return "Z"
    if item.use.device.withheld or item.node.state == nodes_pb2.NODE_STATE_HELD:
        return "W"
    if is_free(item):
        return "."
    return "" if item.use.HasField("sample") else "?"


def _level(share: float) -> int:
    return min(max(int(10 * share), 0), 9)


def _utilization(item: NodeDevice) -> Cell:
    level = _level(item.use.sample.utilization_percent / 100)
    return Cell(str(level), "yellow" if level < _HELD_LITTLE else "green")


def _memory(item: NodeDevice) -> Cell:
    whole = item.use.device.memory_bytes
    return Cell(str(_level(item.use.sample.memory_used_bytes / whole if whole else 0.0)), "cyan")


def _temperature(item: NodeDevice) -> Cell:
    degrees = item.use.sample.temperature_celsius
    level = _level((degrees - _COOL) / _HOT_STEP / 10)
    return Cell(str(level), "red" if level >= _HOT else "cyan")


def _power(item: NodeDevice) -> Cell:
    return Cell(str(_level(item.use.sample.power_watts / 1_000)), "cyan")


_LEVELS: Final[Mapping[Measure, Callable[[NodeDevice], Cell]]] = {
    Measure.UTILIZATION: _utilization,
    Measure.MEMORY: _memory,
    Measure.TEMPERATURE: _temperature,
    Measure.POWER: _power,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """What cells tell at a moment.

    Attributes:
        holders: of each session that holds devices, by name.
        letters: of owners.
    """

    measure: Measure
    now: float
    holders: Mapping[str, Holder]
    letters: Mapping[str, str]

    def cell(self, item: NodeDevice) -> Cell:
        """That of a device."""
        known = [self.holders[name] for name in item.use.sessions if name in self.holders]
        holder = known[0] if known else None
        mark = mark_of(item, holder)
        if mark and not (mark == "?" and self.measure not in _LEVELS):
            return Cell(mark, MARKS[mark][1])
        if self.measure in _LEVELS:
            return _LEVELS[self.measure](item)
        if holder is None:
            return Cell("?", "yellow")
        if self.measure is Measure.OWNER:
            return Cell(self.letters.get(holder.owner, "+"), "cyan")
        held_s = self.now - holder.since
        return Cell("m" if held_s < _HOUR_S else "h" if held_s < _DAY_S else "d", "cyan")

    def cells(self, node: Node) -> list[Cell]:
        """Those of a node's devices."""
        every = [self.cell(NodeDevice(node=node, use=use)) for use in node.devices]
        return every if len(every) <= MOST_CELLS else [*every[: MOST_CELLS - 1], Cell("+")]

    def legend(self) -> str:
        """What the letters mean."""
        if self.measure is Measure.OWNER:
            scale = ", ".join(f"{letter} {owner}" for owner, letter in self.letters.items())
        else:
            scale = _SCALES[self.measure]
        marks = "  ".join(f"{mark} {words}" for mark, (words, _) in MARKS.items())
        return f"{self.measure.value}  {scale or 'nobody holds any'}   {marks}"


class Grid(NamedTuple):
    """How nodes lie beside one another: so many in a line, each in so many cells."""

    across: int
    name_cells: int
    device_cells: int

    @property
    def cells(self) -> int:
        """Of a node, with the gap behind it."""
        return self.name_cells + 1 + self.device_cells + 2

    def title(self, node: Node) -> str:
        """The name of a node in its cells."""
        return pad(
            fit(fit_middle(visible(node.name), self.name_cells), self.name_cells), self.name_cells
        )


def grid_of(nodes: Sequence[Node], room: int) -> Grid:
    """As many beside one another as have room; one at least."""
    names = max((min(width(visible(node.name)), MOST_NAME) for node in nodes), default=1)
    most = max((min(len(node.devices), MOST_CELLS) for node in nodes), default=0)
    grid = Grid(1, names, max(most, 1))
    return grid._replace(across=max(room // grid.cells, 1))
