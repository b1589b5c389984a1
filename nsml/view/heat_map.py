"""All devices at a glance, so that no colour is needed to read it: a letter or a digit each, more where there is room. Pure."""

from __future__ import annotations

import string
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from nsml.common.text import fit, fit_end, fit_middle, pad, visible, width
from nsml.common.units import ago_within
from nsml.v1 import nodes_pb2
from nsml.view.nodes import NodeDevice, is_free

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsml.v1.nodes_pb2 import Node

MOST_NAME: Final = 40
"""Cells of the name of a node."""
SHORT_NAME: Final = 14
_SHORTER_NAMES: Final = (SHORT_NAME, 10, 7)
"""To which names are cut in their middle where whole ones leave too little room, as long as that tells them apart."""
MOST_CELLS: Final = 16
"""Devices of a node that have a place; of more the last one is a `+`."""
LETTER, SPACED, VALUE = 1, 2, 4
"""Cells of a device, with the gap behind it: a letter, the same with a gap, and the value itself."""
_HOLDERS: Final = (20, 13, 9, 6)
"""The same where below the value stands who holds it."""
_OF_A_SESSION: Final = 9
"""Cells from which on that is the session, and not its owner."""
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


def _memory_share(item: NodeDevice) -> float:
    whole = item.use.device.memory_bytes
    return item.use.sample.memory_used_bytes / whole if whole else 0.0


def _memory(item: NodeDevice) -> Cell:
    return Cell(str(_level(_memory_share(item))), "cyan")


def _temperature(item: NodeDevice) -> Cell:
    degrees = item.use.sample.temperature_celsius
    level = _level((degrees - _COOL) / _HOT_STEP / 10)
    return Cell(str(level), "red" if level >= _HOT else "cyan")


def _power(item: NodeDevice) -> Cell:
    return Cell(str(_level(item.use.sample.power_watts / 1_000)), "cyan")


_VALUES: Final[Mapping[Measure, tuple[Callable[[NodeDevice], float], str]]] = {
    Measure.UTILIZATION: (lambda item: item.use.sample.utilization_percent, "%"),
    Measure.MEMORY: (lambda item: 100 * _memory_share(item), "%"),
    Measure.TEMPERATURE: (lambda item: item.use.sample.temperature_celsius, "°C"),
    Measure.POWER: (lambda item: item.use.sample.power_watts, " W"),
}
"""What is measured, and in which unit it is told."""
_UNITS: Final[Mapping[Measure, str]] = {
    Measure.UTILIZATION: "percent of its time",
    Measure.MEMORY: "percent of its memory",
    Measure.TEMPERATURE: "°C",
    Measure.POWER: "watts",
    Measure.AGE: "for how long it is held",
}
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
        holder = self._holder(item)
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

    def lines(self, node: Node, each: int) -> list[list[Cell]]:
        """Those of a node's devices, as lines of a map that has so many cells for each."""
        every = [NodeDevice(node=node, use=use) for use in node.devices]
        more = len(every) > MOST_CELLS
        shown = every[: MOST_CELLS - 1] if more else every
        rows = [[self._sized(item, each) for item in shown]]
        if each in _HOLDERS:
            rows.append([Cell(pad(self._who(item, each - 1), each)) for item in shown])
        if more:
            rows[0].append(Cell(pad("+", each)))
        return rows

    def _sized(self, item: NodeDevice, each: int) -> Cell:
        letter, colour = self.cell(item)
        if each <= SPACED:
            return Cell(pad(letter, each), colour)
        if letter in MARKS:
            words = MARKS[letter][0]
            text = words if each in _HOLDERS and width(words) < each else letter
        else:
            text = self._value(item, letter, each)
        if each == VALUE:
            return Cell(text.rjust(each - 1) + " ", colour)
        return Cell(pad(fit(text, each - 1), each), colour)

    def _value(self, item: NodeDevice, letter: str, each: int) -> str:
        if self.measure in _VALUES:
            value, unit = _VALUES[self.measure]
            text = f"{value(item):.0f}"
            return text + unit if width(text + unit) < each and each > VALUE else text
        holder = self._holder(item)
        if holder is None or (self.measure is Measure.OWNER and each == VALUE):
            return letter
        if self.measure is Measure.OWNER:
            return visible(holder.owner)
        return _held_for(self.now - holder.since)

    def _who(self, item: NodeDevice, cells: int) -> str:
        """The session that holds a device, and how many others; where there is little room its owner."""
        names = [visible(name) for name in item.use.sessions if name]
        if not names:
            return fit("others", cells) if item.use.sessions else ""
        if cells < _OF_A_SESSION - 1:
            holder = self._holder(item)
            if holder is None:
                return fit(names[0].partition("/")[0], cells)
            is_said = self.measure is Measure.OWNER
            return fit(
                _held_for(self.now - holder.since) if is_said else visible(holder.owner), cells
            )
        more = f" +{len(item.use.sessions) - 1}" if len(item.use.sessions) > 1 else ""
        return fit_middle(names[0], cells - len(more)) + more

    def _holder(self, item: NodeDevice) -> Holder | None:
        known = (self.holders[name] for name in item.use.sessions if name in self.holders)
        return next(known, None)

    def legend(self, each: int = LETTER) -> str:
        """What stands in a map that has so many cells for each device."""
        if self.measure is Measure.OWNER and each <= VALUE:
            owners = ", ".join(f"{letter} {owner}" for owner, letter in self.letters.items())
            scale = owners or "no GPU is held"
        elif self.measure is Measure.OWNER:
            scale = "who holds it"
        else:
            scale = (_SCALES if each <= SPACED else _UNITS)[self.measure]
        marks = "  ".join(f"{mark} {words}" for mark, (words, _) in MARKS.items())
        return f"{self.measure.value}  {scale}   {marks}"


def _held_for(seconds: float) -> str:
    return ago_within(seconds, 3)


class Titles(NamedTuple):
    """How nodes are called in so many cells: without the domain that all have, and at last by the end of their names, or by both ends."""

    cells: int
    domain: int = 0
    """Letters at the end of each name that are left out."""
    is_by_end: bool = False

    def of(self, name: str) -> str:
        """How one is called."""
        own = visible(name)[: -self.domain or None]
        return (fit_end if self.is_by_end else fit_middle)(own, self.cells)


class Grid(NamedTuple):
    """How nodes lie beside one another: so many in a line, of each the name and so many devices of so many cells."""

    across: int
    titles: Titles
    devices: int
    each: int = LETTER

    @property
    def cells(self) -> int:
        """Of a node, with the gap behind it."""
        return self.titles.cells + 1 + self.devices * self.each + 2

    @property
    def lines(self) -> int:
        """Of a node: where it has two, with an empty one below."""
        return 3 if self.each in _HOLDERS else 1

    def height(self, count: int) -> int:
        """Lines of so many nodes."""
        return -(-count // self.across) * self.lines - (self.lines > 1)

    def title(self, node: Node) -> str:
        """The name of a node in its cells."""
        return pad(fit(self.titles.of(node.name), self.titles.cells), self.titles.cells)


def grid_of(nodes: Sequence[Node], room: int, height: int = 0) -> Grid:
    """The grid that says most of those that fit: whole names first, then large cells. Where none does, the smallest, to be scrolled.

    `room`, `height`: cells and lines that there are.
    """
    most = max(max((min(len(node.devices), MOST_CELLS) for node in nodes), default=0), 1)

    def grid(titles: Titles, each: int) -> Grid:
        one = Grid(1, titles, most, each)
        return one._replace(across=max(room // one.cells, 1))

    every = _titles([node.name for node in nodes])
    for titles in every:
        for each in (*_HOLDERS, VALUE, SPACED, LETTER):
            found = grid(titles, each)
            if found.cells <= room and found.height(len(nodes)) <= height:
                return found
    usual = next((one for one in every if one.cells <= SHORT_NAME), every[-1])
    return grid(usual, LETTER)


def _titles(names: Sequence[str]) -> list[Titles]:
    """Those that tell nodes apart, the longest first."""

    def longest(domain: int) -> int:
        taken = (width(visible(name)[: -domain or None]) for name in names)
        return min(max(taken, default=1), MOST_NAME)

    found = [Titles(longest(0))]
    domains = {name.partition(".")[2] for name in map(visible, names)}
    domain = max(map(len, domains), default=0) + 1
    if len(names) > 1 and len(domains) == 1 and domain > 1:
        found.append(Titles(longest(domain), domain))
    for cells in _SHORTER_NAMES:
        kinds = (Titles(cells, found[-1].domain, is_by_end) for is_by_end in (True, False))
        told = (one for one in kinds if len(set(map(one.of, names))) == len(set(names)))
        if cells < found[-1].cells and (one := next(told, None)) is not None:
            found.append(one)
    return found
